"""The codes of schedules, generated kernels, backends and tuning tables."""

from __future__ import annotations

from collections.abc import Mapping

from jaxcc.layout._codes import Entry

_SCHEDULE = {
    "ARGUMENT": (
        "a verb or a compiled schedule got something it does not take",
        "A verb or compile got a name that is taken or not there, a dimension that is not there, "
        "or `...` where nothing stands on both sides; or a compiled schedule was called with "
        "arguments of another structure or shape than it was compiled for. The message names the "
        "argument and what fits. print(schedule) shows names and shapes; for other arguments make "
        "and compile a schedule of their own.",
    ),
    "CHANGES_RESULT": (
        "a step would change what the program computes",
        "Every step is checked like a program. The message is the checker's, for the "
        "rewritten program.",
    ),
    "CHUNKS": (
        "operations cannot run together in chunks",
        "overlap cuts a product, and what reads it, along one dimension that all operations treat "
        "element by element: a dimension that a product does not sum over, and that no collective "
        "inside cuts or puts together. The message says for each dimension what stands against it.",
    ),
    "CYCLE": (
        "operations would wait for one another",
        "What lies between fused operations has to be in the fusion too; `...` names all of it.",
    ),
    "FORMAT": (
        "a text is not a saved schedule",
        "Schedule.apply takes the steps of a schedule, or the text that to_json() returned. That "
        "text says which version of the format it has; this jaxcc reads the one that the message "
        "names.",
    ),
    "FORWARD_MODE": (
        "a scheduled program is differentiated in forward mode",
        "A compiled schedule has the derivative of the function that it was made of, as a rule for "
        "reverse mode: jax.grad, jax.vjp and jax.jacrev. For jax.jvp, jax.jacfwd and jax.hessian "
        "use the typed function itself.",
    ),
    "INDIVISIBLE": (
        "the ranks do not divide a dimension",
        "A reduce-scatter gives every rank an equal block. Pad the dimension or scatter "
        "another one.",
    ),
    "NOT_DEPENDENT": (
        "an operation is named after one that it does not depend on",
        "reorder moves a gather behind operations that compute with what it gathers; overlap runs "
        "operations in chunks of which each reads what the one before it makes.",
    ),
    "NOT_FOUND": (
        "no operation has that name",
        "print(schedule) shows all names; jaxcc.name(x, 'label') gives one of your own.",
    ),
    "NOT_POINTWISE": (
        "an operation does not treat every element by itself",
        "On a slice it would see a part of what it needs. Pointwise operations, reductions and "
        "changes of shape that keep a rank's block together run on slices; fusions hold pointwise "
        "operations only.",
    ),
    "NOT_RESULT": (
        "dead is told of something that is no result, or of the last one",
        "dead acts on results of the program, before they are fused. The message lists them. An "
        "input that nothing reads is still passed; jax.jit leaves it out.",
    ),
    "NO_COLLECTIVE": (
        "a fusion with neither a collective nor work",
        "fuse joins collectives and pointwise work. Slices and broadcasts alone are neither.",
    ),
    "OTHER_PROGRAM": (
        "saved steps were made for another program",
        "to_json() keeps the names, types and layouts of the inputs, operations and results that "
        "steps refer to. The program has changed since: the message says where. Make the schedule "
        "anew and save that. Numbers, captured arrays and the group's size may change.",
    ),
    "NO_MATPLOTLIB": (
        "a plot of tuning results needs matplotlib",
        "It is installed with the extra: pip install 'jaxcc[plot]'. Tuned.table has the same "
        "numbers as text.",
    ),
    "READ_WHOLE": (
        "more than its slice is read of a value",
        "as_slice makes an input or a result Sliced only if nothing needs the rest of it.",
    ),
    "ROOTED": (
        "a value that is right on one rank only is read by others",
        "Between a reduce and its broadcast only the root has the value. What it computes from "
        "that and from Replicated values stays there, until a broadcast from the same rank; a "
        "result, a collective, a loop or a branch would read the other ranks' values, too.",
    ),
    "SLICED_TWICE": (
        "an operation would read slices along two dimensions",
        "A rank holds blocks of one dimension of a value. Where two meet, as in x + x.T, one of "
        "the values has to be gathered before.",
    ),
    "TACTIC": (
        "a tactic returns something other than a schedule",
        "Verbs do not change a schedule, they return a new one. A tactic has to return what its "
        "last verb returns, or the schedule that it was given.",
    ),
    "TWO_GROUPS": (
        "parts of one fusion slice differently",
        "All collectives of a fusion run over one axis and slice one dimension of arrays of one "
        "shape, and it returns whole arrays and blocks of that shape. Sends have a fusion of their "
        "own.",
    ),
    "VERB": (
        "a step names a verb that does not exist",
        "The message lists the verbs of this jaxcc; a newer one may have more.",
    ),
    "WRONG_RESULT": (
        "a program that is tuned does not compute what its reference does",
        "Every schedule is run and held against the reference before it is timed; one that differs "
        "is thrown out. If it is the program as it was written, its rounding may be larger than "
        "usual: pass rtol=. Otherwise look for an unsafe_assume that does not hold.",
    ),
    "WRONG_OPERATION": (
        "a verb does not act on this kind of operation",
        "split acts on a sum over one axis, or on any reduction over one axis with "
        "policy='reduce-broadcast', reorder on an all-gather or a broadcast; the message says what "
        "it found.",
    ),
}

_CODEGEN = {
    "BROADCAST": (
        "an input is repeated along the result in a way that the kernel cannot index",
        "A kernel for tensors of any shape takes operands of the result's shape, or scalars.",
    ),
    "PLATFORM": (
        "a kernel has no form for this device",
        "Kernels that reduce rows or whole tensors are written for hosts so far; the parts of the "
        "group run by themselves elsewhere.",
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
    "ABANDONED": (
        "another collective of the same execution failed",
        "When a collective fails, the rest of that execution fails at once, so that no rank waits "
        "for ranks that have given up. The message quotes the first error; the next execution "
        "starts anew.",
    ),
    "BUSY": (
        "one rank came to two collectives of one group at the same time",
        "Collectives of one program run in one order on all ranks, and programs run in the order "
        "in which one thread calls them. Two threads called programs with collectives of the same "
        "group: call them from one thread.",
    ),
    "INTERNAL": (
        "the C++ part failed, for want of memory for example",
        "The message is the C++ library's. If memory is not short, it is a fault of jaxcc's.",
    ),
    "MISMATCH": (
        "ranks of one group came to different collectives",
        "All ranks of a group run the same collectives on the same shapes in the same order. The "
        "message names two that differ: look for a branch, the length of a loop or a shape that "
        "differs between ranks.",
    ),
    "ARGUMENT": (
        "a collective or a fused kernel got what it does not take",
        "jaxcc.comm.explain was asked about a collective that jaxcc.comm does not have, or about "
        "something other than one array; or a kernel was called with tensors of different kinds. "
        "Name one of the collectives in the message, and pass an array or a "
        "jax.ShapeDtypeStruct. From a compiled schedule it is an error of jaxcc: report it.",
    ),
    "AXIS": (
        "an axis that the mesh does not have",
        "The group of a kernel or collective is named by mesh axes, each once. Use the axes that "
        "the message lists, or pass the mesh=, that of the enclosing jax.shard_map, that has them. "
        "A schedule's .local and an optimizer's step run inside jax.shard_map only.",
    ),
    "COORDINATOR": (
        "processes cannot find one another",
        "One process, rank 0, has to listen at an address that all the others know. Under mpirun "
        "on one machine, and under srun, jaxcc.init finds one; across machines MPI is asked, "
        "through mpi4py. If the port is taken, or nobody answers, name another that is free on "
        "the machine of rank 0: the same JAXCC_COORDINATOR=HOST:PORT for every process, with its "
        "own JAXCC_RANK and with JAXCC_RANKS.",
    ),
    "DISAGREE": (
        "processes of one group do not agree",
        "Processes that share memory need one jaxcc version and one tuning table; the message "
        "shows what differs. With JAXCC_CHECK=1 the mpi backend also compares each call while it "
        "is traced, before any data moves. Shapes, dtypes and the order of calls have to be the "
        "same on every rank; the message shows each rank's call. Look for a Python `if` on the "
        "rank, or for data of different sizes.",
    ),
    "COLLECTIVE": (
        "a collective that the backend does not have",
        "The xla and host backends have all of jaxcc.comm; MPI carries all_reduce.",
    ),
    "DTYPE": (
        "a backend does not have this reduction of this dtype",
        "The host backend has kernels for common floats and integers, and MPI has types for those "
        "of C. Cast the operand to one that the message names, or use backend='xla', which has "
        "all.",
    ),
    "KERNEL": (
        "a kernel cannot be loaded",
        "A compiled kernel is loaded from the cache when it is first used; the loader's message "
        "is shown. Most often the file is damaged or was made on another machine: remove the "
        "folder JAXCC_CACHE_DIR (by default ~/.cache/jaxcc), and it is compiled again.",
    ),
    "MALLOC": (
        "tune_malloc came too late, or there is no glibc to tune",
        "Threads take their memory when they start, so jaxcc.tune_malloc() comes before JAX "
        "starts: before the first line that asks for devices or runs something. Under another "
        "allocator, or another C library than glibc, it has nothing to set. Variables can be set "
        "instead, before Python starts: the message and jaxcc.malloc_environment() have them.",
    ),
    "MESH": (
        "a kernel does not know the devices of its group, or was made for others",
        "Inside jax.shard_map JAX does not tell which devices stand behind an axis. jaxcc knows "
        "them without help only if the group is all devices of the process. Otherwise pass mesh=, "
        "the mesh of the enclosing jax.shard_map: to the collective, to the optimizer, or to "
        "schedule.compile. It may have the devices of a group in another order, but not other "
        "groups.",
    ),
    "MPI_DEVICES": (
        "the mpi backend needs one device in each process",
        "All devices of a process would share one MPI rank. Start a process for each rank, with "
        "mpirun -n N and without --xla_force_host_platform_device_count; for the devices of one "
        "process use backend='host'.",
    ),
    "MPI_GROUP": (
        "the mpi backend runs over all processes",
        "The group of the collective has another size than the JAX program or the MPI world. Run "
        "over axes that together span all processes, start them with mpirun -n N, and call "
        "jax.distributed.initialize in each.",
    ),
    "MPI_MISSING": (
        "mpi4jax or mpi4py is not installed",
        "The mpi backend sends through mpi4jax, which is compiled against the MPI of the machine. "
        "Install an MPI library, then both packages with the command that the message shows.",
    ),
    "NOT_BUILT": (
        "jaxcc was installed without its C++ part",
        "The host backend and fused kernels need it; it is compiled when jaxcc is installed. "
        "Install jaxcc again where a C++17 compiler is on PATH. Until then backend='xla' has the "
        "same results.",
    ),
    "NOT_LOCAL": (
        "the host backend runs on CPU devices whose processes share memory",
        "It passes data through memory, so GPUs, devices of processes on other machines, in other "
        "containers or of other users, and an AbstractMesh, which has no devices, cannot take "
        "part. Use backend='xla', or backend='mpi' between processes; or pass mesh=, a mesh of CPU "
        "devices. For devices of several processes call jax.distributed.initialize first.",
    ),
    "NO_DEVICES": (
        "an AbstractMesh has no devices to run on",
        "A program over an AbstractMesh can be checked and scheduled, but not run. Make the mesh "
        "with jax.make_mesh to run it.",
    ),
    "NO_GRADIENT": (
        "a reduction has no gradient",
        "On the host and mpi backends only sums and means are differentiable. Write a maximum, "
        "minimum or product as an all-gather and a local reduction, use backend='xla' for a "
        "product, or wrap the operand in jax.lax.stop_gradient if its gradient is not wanted.",
    ),
    "NO_MESH": (
        "a fused optimizer or layer has no mesh",
        "Its kernel runs on the devices of an axis, so it needs to know them. Pass mesh= to the "
        "optimizer or the layer, or run under `with jax.set_mesh(mesh):`.",
    ),
    "ORDER": (
        "a collective lies where jaxcc cannot keep it in order",
        "All collectives of the host backend in one program run in one order, which jaxcc leads "
        "through JAX's functions, loops, branches and derivatives. The message names another "
        "operation with a function inside: move the collective out of it, or use backend='xla' "
        "there.",
    ),
    "RANK_DIED": (
        "a process of the group ended while others waited for it",
        "It was killed, crashed, or left before its last collective: its own output says why. The "
        "group cannot be used again in this run; work on this process's own arrays goes on, so a "
        "checkpoint can still be written. Start all processes again.",
    ),
    "RANKS": (
        "a group is too large for the host backend",
        "Its ranks meet in a table of fixed size, which the message states. Use backend='xla', or "
        "reduce over one mesh axis after the other.",
    ),
    "SETTING": (
        "an environment variable has a value that it does not take",
        "The message names the variable, its value and what it takes. Set it so, or unset it for "
        "the default.",
    ),
    "SHARED_MEMORY": (
        "processes cannot share memory",
        "Ranks in several processes pass data through anonymous memory that one of them makes and "
        "the others open through /proc. The system's message is shown. The processes need one "
        "user, one container and a /proc, and about 2 MiB for each rank.",
    ),
    "SIZE": (
        "more elements than one MPI call counts",
        "MPI counts the elements of a message in 32 bits. Reduce the array in parts, such as one "
        "leaf or one block of rows at a time.",
    ),
    "STARTED": (
        "jaxcc.init came after JAX had started",
        "JAX looks for devices once, when it is first asked for them or runs something, and then "
        "knows no other process. Call jaxcc.init() first: before jax.devices(), jax.make_mesh and "
        "the first array, in modules that you import, too.",
    ),
    "TIMEOUT": (
        "the other ranks did not come",
        "Every wait is bounded, by JAXCC_TIMEOUT_S (300 seconds by default). Trace and run the "
        "same program on every rank: one that fails, or takes another branch, leaves the others "
        "waiting. If ranks are only slow, raise JAXCC_TIMEOUT_S.",
    ),
    "UNKNOWN": (
        "there is no such backend",
        "The message lists the backends of this function: collectives and compiled schedules have "
        "different ones. 'auto' takes the fastest that can run.",
    ),
}

_TABLE = {
    "BACKEND": ("a tuning table names a backend that does not exist", "Write the table again."),
    "FORMAT": ("a file is not a tuning table", "jaxcc.comm.Table documents the format."),
    "MISSING": ("a tuning table cannot be read", "The system's message is shown."),
    "PROFILE": (
        "a file is not a machine profile",
        "The message says what is wrong in it. jaxcc tune --profile measures this machine and "
        "writes one; jaxcc.schedule.tuner.Profile documents the numbers.",
    ),
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
