"""A caching allocator written for clarity: lists, scans, nothing kept up to date by hand."""

from __future__ import annotations

MIB = 1 << 20


class Full(Exception):
    """The device has no room."""


class SlowCaching:
    """The rules of PyTorch's notes and comments, one method each.

    A segment is a list of ``[size, owner]`` from its start on; the owner of a free piece is
    ``"free"``, that of address space with no memory behind it ``"unmapped"``.
    """

    def __init__(self, capacity=None, expandable=False, max_split=None):
        self.capacity = capacity
        self.expandable = expandable
        self.max_split = max_split
        self.segments = []  # dicts: small, stream, pieces, in the order they were made
        self.emptied = 0

    # What is there

    def reserved(self):
        return sum(
            size for s in self.segments for size, owner in s["pieces"] if owner != "unmapped"
        )

    def allocated(self):
        return sum(
            size
            for s in self.segments
            for size, owner in s["pieces"]
            if owner not in ("free", "unmapped")
        )

    def ranges(self):
        """(segment, start, end, owner) of every block in use."""
        for number, segment in enumerate(self.segments):
            start = 0
            for size, owner in segment["pieces"]:
                if owner not in ("free", "unmapped"):
                    yield number, start, start + size, owner
                start += size

    # Requests

    def allocate(self, owner, size, stream=0):
        small = size <= MIB
        place = self._best_fit(size, small, stream)
        if place is None:
            for prepare in (lambda: True, self._drop_oversize(size, small, stream), self._empty):
                if not prepare():
                    continue
                try:
                    place = self._new(size, small, stream)
                    break
                except Full:
                    pass
            else:
                raise Full
        segment, i = place
        rest = segment["pieces"][i][0] - size
        limit = self.max_split if self.max_split is not None else float("inf")
        split = rest >= 512 if small or self.expandable else size < limit and rest > MIB
        if split:
            segment["pieces"][i : i + 1] = [[size, owner], [rest, "free"]]
        else:
            segment["pieces"][i][1] = owner
        self._join()

    def release(self, owner):
        for segment in self.segments:
            for piece in segment["pieces"]:
                if piece[1] == owner:
                    piece[1] = "free"
        self._join()

    # Rules

    def _join(self):
        for segment in self.segments:
            joined = []
            for size, owner in segment["pieces"]:
                if joined and owner in ("free", "unmapped") and joined[-1][1] == owner:
                    joined[-1][0] += size
                else:
                    joined.append([size, owner])
            segment["pieces"] = joined

    def _pool(self, small, stream):
        return [s for s in self.segments if s["small"] == small and s["stream"] == stream]

    def _best_fit(self, size, small, stream):
        found = []
        for number, segment in enumerate(self._pool(small, stream)):
            pieces = segment["pieces"]
            for i, (length, owner) in enumerate(pieces):
                if owner == "free" and length >= size:
                    room = length
                    if i + 1 < len(pieces) and pieces[i + 1][1] == "unmapped":
                        room = 1 << 60  # the address space never ends where it is the last
                        if i + 2 < len(pieces):
                            room = length + pieces[i + 1][0]
                    found.append((length, number, i, room, segment))
        found.sort(key=lambda one: one[:3])
        if not found:
            return None
        best = found[0]
        if self.expandable:
            for other in found[1:]:
                if other[3] >= best[3]:
                    break
                best = other
        limit = self.max_split if self.max_split is not None else float("inf")
        if size < limit <= best[0]:
            return None
        if size >= limit and best[0] >= size + 20 * MIB:
            return None
        return best[4], best[2]

    def _take(self, size):
        if self.capacity is not None and self.reserved() + size > self.capacity:
            raise Full

    def _new(self, size, small, stream):
        if self.expandable:
            return self._grow(size, small, stream)
        if small:
            length = 2 * MIB
        elif size < 10 * MIB:
            length = 20 * MIB
        else:
            length = -(-size // (2 * MIB)) * 2 * MIB
        self._take(length)
        segment = {"small": small, "stream": stream, "pieces": [[length, "free"]]}
        self.segments.append(segment)
        return segment, 0

    def _grow(self, size, small, stream):
        page = 2 * MIB if small else 20 * MIB
        if not self._pool(small, stream):
            pieces = [[page * (1 << 30), "unmapped"]]
            self.segments.append({"small": small, "stream": stream, "pieces": pieces})
        (segment,) = self._pool(small, stream)
        while True:
            pieces = segment["pieces"]
            for i in range(len(pieces)):
                j, room = i, 0
                while j < len(pieces) and pieces[j][1] in ("free", "unmapped") and room < size:
                    room += pieces[j][0]
                    j += 1
                owners = [piece[1] for piece in pieces[i : i + 2]]
                starts = owners[0] == "unmapped" or owners == ["free", "unmapped"]
                if room >= size and starts:
                    break
            if pieces[i][1] == "free" and pieces[i][0] >= size:
                return segment, i
            at = i if pieces[i][1] == "unmapped" else i + 1
            missing = size - (pieces[i][0] if at > i else 0)
            length = -(-min(missing, pieces[at][0]) // page) * page
            self._take(length)
            pieces[at : at + 1] = [[length, "free"]] + (
                [[pieces[at][0] - length, "unmapped"]] if pieces[at][0] > length else []
            )
            self._join()
            # The same place again, now that more of it is mapped.
            pieces = segment["pieces"]
            if pieces[i][1] == "free" and pieces[i][0] >= size:
                return segment, i

    def _drop_oversize(self, size, small, stream):
        def drop():
            if self.max_split is None or self.expandable:
                return False
            wanted = max(size, self.max_split)
            cached = [
                s
                for s in self._pool(small, stream)
                if len(s["pieces"]) == 1
                and s["pieces"][0][1] == "free"
                and s["pieces"][0][0] >= self.max_split
            ]
            cached.sort(key=lambda s: (s["pieces"][0][0], self.segments.index(s)))
            enough = [s for s in cached if s["pieces"][0][0] >= wanted]
            if enough:
                self.segments.remove(enough[0])
                return True
            released = 0
            while cached and released < wanted:
                segment = cached.pop()
                released += segment["pieces"][0][0]
                self.segments.remove(segment)
            return released >= wanted

        return drop

    def _empty(self):
        self.emptied += 1
        self.segments = [
            s
            for s in self.segments
            if s["pieces"][-1][1] == "unmapped" or [p[1] for p in s["pieces"]] != ["free"]
        ]
        if self.expandable:
            for segment in self.segments:
                page = 2 * MIB if segment["small"] else 20 * MIB
                pieces, start = [], 0
                for size, owner in segment["pieces"]:
                    first, end = -(-start // page) * page, (start + size) // page * page
                    if owner == "free" and end > first:
                        parts = [[first - start, "free"], [end - first, "unmapped"]]
                        parts.append([start + size - end, "free"])
                        pieces += [part for part in parts if part[0]]
                    else:
                        pieces.append([size, owner])
                    start += size
                segment["pieces"] = pieces
            self._join()
        return True


class SlowArena:
    """A line of ``[size, owner]`` that grows at its end."""

    def __init__(self, best, capacity=None):
        self.best = best
        self.capacity = capacity
        self.pieces = []
        self.high = 0

    def allocate(self, owner, size):
        gaps = [(p[0], i) for i, p in enumerate(self.pieces) if p[1] is None and p[0] >= size]
        if gaps:
            _, i = min(gaps) if self.best else min(gaps, key=lambda gap: gap[1])
            rest = self.pieces[i][0] - size
            self.pieces[i : i + 1] = [[size, owner]] + ([[rest, None]] if rest else [])
        else:
            while self.pieces and self.pieces[-1][1] is None:
                self.pieces.pop()
            top = sum(p[0] for p in self.pieces)
            if self.capacity is not None and top + size > self.capacity:
                raise Full
            self.pieces.append([size, owner])
        self.high = max(self.high, sum(p[0] for p in self.pieces))

    def release(self, owner):
        joined = []
        for size, other in self.pieces:
            other = None if other == owner else other
            if joined and other is None and joined[-1][1] is None:
                joined[-1][0] += size
            else:
                joined.append([size, other])
        while joined and joined[-1][1] is None:
            joined.pop()
        self.pieces = joined

    def reserved(self):
        return self.high

    def allocated(self):
        return sum(size for size, owner in self.pieces if owner is not None)
