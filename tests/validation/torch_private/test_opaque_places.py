"""Meshes among the arguments of a joint graph: taken out, and back in their places."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.torch_private.opaque_places import OpaquePlaces  # noqa: E402
from torch._functorch._aot_autograd import descriptors as d  # noqa: E402

import schedsim  # noqa: E402


class DeviceMesh:
    """Has the name of torch's."""


MESH = DeviceMesh()


def _joint(*, read=False):
    """x, then the share and the mesh of a spread parameter; an output, its gradients."""
    graph = torch.fx.Graph()
    x = graph.placeholder("primals_1")
    share = graph.placeholder("primals_2")
    mesh = graph.placeholder("primals_3")
    given = graph.placeholder("tangents_1")
    spread = d.PlainAOTInput(1)
    x.meta |= {"val": torch.ones(2), "desc": d.PlainAOTInput(0)}
    share.meta |= {"val": torch.ones(2), "desc": d.SubclassGetAttrAOTInput(spread, "_local_tensor")}
    mesh.meta |= {"val": MESH, "desc": d.SubclassGetAttrAOTInput(spread, "device_mesh")}
    out = graph.call_function(torch.mul, (x, share))
    if read:
        graph.call_function(torch.mul, (out, mesh))
    outputs = (out, None, graph.call_function(torch.mul, (given, x)), mesh)
    graph.output(outputs).meta["desc"] = list("abcd")
    return torch.fx.GraphModule({}, graph)


def test_a_mesh_is_taken_out_and_put_back():
    """The halves that are planned see tensors alone; autograd gets what it has traced."""
    joint = _joint()
    found = OpaquePlaces.taken_out(joint, 1)
    assert (found.places, found.num_outputs) == ((0, 1), 1)
    assert found.fixed([1]) == {1}
    assert [node.name for node in joint.graph.nodes if node.op == "placeholder"] == [
        "primals_1",
        "primals_2",
        "tangents_1",
    ]
    arguments = ["x", "share", MESH]
    assert found.forward(lambda given: [*given, "kept"])(arguments) == ["x", "share", "kept"]
    assert arguments == []
    assert found.backward(lambda given: [None, *given[:0], "gradient"])(["kept", "given"]) == [
        None,
        "gradient",
        MESH,
    ]


def test_an_op_that_reads_a_mesh_is_refused():
    """No plan goes into it."""
    with pytest.raises(schedsim.UnsupportedError, match="reads a mesh"):
        OpaquePlaces.taken_out(_joint(read=True), 1)
