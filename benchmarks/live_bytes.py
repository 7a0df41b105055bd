"""The CPU allocator's live bytes, counted in every step: no profiler, which schedsim itself needs.

An allocator that counts stands in the place of torch's own, which does the work. It is compiled
once, by the C++ compiler of `torch.utils.cpp_extension`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_SOURCE = r"""
#include <c10/core/CPUAllocator.h>
#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace {
std::mutex guard;
std::unordered_map<void*, int64_t>& sizes() {
  static auto* it = new std::unordered_map<void*, int64_t>();  // frees come until the very end
  return *it;
}
int64_t live = 0, most = 0;
c10::Allocator* inner = nullptr;

void forget(void* place) {
  if (!place) return;
  {
    std::lock_guard<std::mutex> hold(guard);
    auto it = sizes().find(place);
    if (it != sizes().end()) {
      live -= it->second;
      sizes().erase(it);
    }
  }
  inner->raw_deleter()(place);
}

struct Counting final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* place = inner->raw_allocate(n);
    if (place) {
      std::lock_guard<std::mutex> hold(guard);
      sizes()[place] = static_cast<int64_t>(n);
      live += static_cast<int64_t>(n);
      most = std::max(most, live);
    }
    return {place, place, &forget, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &forget; }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    default_copy_data(to, from, n);
  }
};
}  // namespace

extern "C" {
void install() {
  if (inner) return;
  inner = c10::GetCPUAllocator();
  static auto* counting = new Counting();
  c10::SetCPUAllocator(counting, 255);
}
int64_t live_bytes() { std::lock_guard<std::mutex> hold(guard); return live; }
int64_t peak_bytes() { std::lock_guard<std::mutex> hold(guard); return most; }
void reset_peak() { std::lock_guard<std::mutex> hold(guard); most = live; }
}
"""


@cache
def counter() -> Any:
    """Gives `live_bytes()`, and `peak_bytes()` since `reset_peak()`, of what comes from now on."""
    from torch.utils.cpp_extension import load_inline

    place = load_inline("schedsim_live_bytes", _SOURCE, is_python_module=False)
    found = ctypes.CDLL(place)
    for name in ("live_bytes", "peak_bytes"):
        getattr(found, name).restype = ctypes.c_int64
    found.install()
    return found
