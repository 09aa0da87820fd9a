"""The codes of schedules, generated kernels, backends and tuning tables."""

from __future__ import annotations

from collections.abc import Mapping

from jaxcc.layout._codes import Entry

_SCHEDULE = {
    "ARGUMENT": (
        "a verb or a compiled schedule got something it does not take",
        "The message says what.",
    ),
    "CHANGES_RESULT": (
        "a step would change what the program computes",
        "Every step is checked like a program. The message is the checker's, for the "
        "rewritten program.",
    ),
    "CYCLE": (
        "operations would wait for one another",
        "What lies between fused operations has to be in the fusion too; `...` names all of it.",
    ),
    "INDIVISIBLE": (
        "the ranks do not divide a dimension",
        "A reduce-scatter gives every rank an equal block. Pad the dimension or scatter "
        "another one.",
    ),
    "NOT_DEPENDENT": (
        "an all-gather is moved past an operation that does not read it",
        "reorder moves a gather behind operations that compute with what it gathers.",
    ),
    "NOT_FOUND": (
        "no operation has that name",
        "print(schedule) shows all names; jaxcc.name(x, 'label') gives one of your own.",
    ),
    "NOT_POINTWISE": (
        "an operation does not treat every element by itself",
        "On a slice it would see a part of what it needs. Only pointwise operations run on slices.",
    ),
    "NO_COLLECTIVE": (
        "a fusion without a collective",
        "fuse joins a collective and what surrounds it.",
    ),
    "READ_WHOLE": (
        "more than its slice is read of a value",
        "as_slice makes an input or a result Sliced only if nothing needs the rest of it.",
    ),
    "TWO_GROUPS": (
        "collectives of one fusion slice differently",
        "All collectives of a fusion run over one axis and slice one dimension.",
    ),
    "WRONG_OPERATION": (
        "a verb does not act on this kind of operation",
        "split acts on a sum over one axis, reorder on an all-gather; the message says "
        "what it found.",
    ),
}

_CODEGEN = {
    "BROADCAST": (
        "an input is repeated along the result in a way that the kernel cannot index",
        "A kernel for tensors of any shape takes operands of the result's shape, or scalars.",
    ),
    "CACHE": (
        "others can write to the kernel cache",
        "Code is loaded from it, so it must be yours alone: chmod go-w, or set JAXCC_CACHE_DIR.",
    ),
    "COMPILE": (
        "the compiler refused a kernel",
        "The compiler's message is shown. JAXCC_CXX chooses another C++17 compiler.",
    ),
    "CONST": (
        "a fused function closes over an array",
        "A kernel's text holds numbers, not arrays. Pass the array as an argument.",
    ),
    "DTYPE": (
        "a dtype that kernels do not have",
        "Cast before the operation, or leave it out of the fusion.",
    ),
    "NO_COMPILER": (
        "there is no C++ compiler",
        "Fused kernels are compiled when first used. Without a compiler programs run unfused.",
    ),
    "NO_NVRTC": ("NVRTC is not installed", "CUDA kernels need it: pip install 'jaxcc[cuda]'."),
    "OPERAND": (
        "a kernel broadcasts an operand that is not Replicated",
        "A rank has only its own block of a sliced operand. Leave the operation out of the fusion.",
    ),
    "PRIMITIVE": (
        "an operation that a kernel cannot contain",
        "The generator has pointwise operations. Leave this one out of the fusion.",
    ),
    "SHAPE": (
        "outputs of one kernel have different shapes",
        "One loop computes all outputs of a kernel.",
    ),
}

_BACKEND = {
    "ARGUMENT": (
        "a fused call got tensors that differ in kind",
        "All have equally many operands and results.",
    ),
    "AXIS": ("an axis that the mesh does not have", "The message lists the mesh's axes."),
    "DISAGREE": (
        "processes of one group are about to run different collectives",
        "Shapes, dtypes and the order of calls have to be the same on every rank.",
    ),
    "DTYPE": (
        "a backend does not have this reduction of this dtype",
        "Cast, or use backend='xla'.",
    ),
    "KERNEL": ("a kernel cannot be loaded", "The loader's message is shown."),
    "MESH": (
        "the host backend does not know the group's devices",
        "Inside shard_map JAX does not tell them. Pass mesh=.",
    ),
    "MPI_DEVICES": (
        "the mpi backend needs one device in each process",
        "Start a process for each rank.",
    ),
    "MPI_GROUP": (
        "the mpi backend runs over all processes",
        "The group and MPI have different sizes.",
    ),
    "MPI_MISSING": ("mpi4jax or mpi4py is not installed", "The message says how to install them."),
    "NOT_BUILT": (
        "jaxcc was installed without its C++ part",
        "Install it again where a C++17 compiler is on PATH.",
    ),
    "NOT_LOCAL": (
        "the host backend runs on CPU devices of one process",
        "Use backend='xla' or backend='mpi'.",
    ),
    "NO_DEVICES": (
        "an AbstractMesh has no devices to run on",
        "It serves to check a program. jax.make_mesh makes a mesh that runs one.",
    ),
    "NO_GRADIENT": (
        "a reduction has no gradient",
        "Write it as a gather and a local reduction, or wrap it in stop_gradient.",
    ),
    "NO_MESH": ("a fused optimizer has no mesh", "Pass mesh=, or run under jax.set_mesh."),
    "RANKS": ("a group is too large for the host backend", "Use backend='xla'."),
    "SETTING": (
        "an environment variable has a value that it does not take",
        "The message lists them.",
    ),
    "SIZE": ("more elements than one MPI call counts", "Reduce the array in parts."),
    "TIMEOUT": (
        "the other ranks did not come",
        "Every wait is bounded. Trace and run the same program on every rank, or raise "
        "JAXCC_TIMEOUT_S.",
    ),
    "UNKNOWN": ("there is no such backend", "The message lists them."),
}

_TABLE = {
    "BACKEND": ("a tuning table names a backend that does not exist", "Write the table again."),
    "FORMAT": ("a file is not a tuning table", "jaxcc.comm.Table documents the format."),
    "MISSING": ("a tuning table cannot be read", "The system's message is shown."),
}

RUN_CODES: Mapping[str, Entry] = {
    f"{room}_{name}": Entry(title, explanation)
    for room, entries in (
        ("SCHEDULE", _SCHEDULE),
        ("CODEGEN", _CODEGEN),
        ("BACKEND", _BACKEND),
        ("TABLE", _TABLE),
    )
    for name, (title, explanation) in entries.items()
}
