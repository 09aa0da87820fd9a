// The Python module jaxcc.runtime._ffi.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "channel.h"
#include "fused.h"
#include "handler.h"
#include "kernels.h"
#include "move.h"
#include "wait.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class Pointer>
nb::capsule capsule(Pointer pointer) {
  return nb::capsule(reinterpret_cast<const void*>(pointer));
}

// As jax.ffi.register_ffi_target takes it.
nb::dict target(XLA_FFI_Handler* instantiate, XLA_FFI_Handler* execute) {
  nb::dict stages;
  stages["instantiate"] = capsule(instantiate);
  stages["execute"] = capsule(execute);
  return stages;
}

// As jax.ffi.register_ffi_type takes it.
nb::dict type(XLA_FFI_TypeId* id, const XLA_FFI_TypeInfo* info) {
  nb::dict parts;
  parts["type_id"] = capsule(id);
  parts["type_info"] = capsule(info);
  return parts;
}

}  // namespace

NB_MODULE(_ffi, m) {
  m.def("registrations", [] {
    nb::dict targets;
    targets["jaxcc_fused"] = target(jaxcc::instantiate_fused, jaxcc::execute_fused);
    targets["jaxcc_move"] = target(jaxcc::instantiate_move, jaxcc::execute_move);
    nb::dict nothing;
    nothing["execute"] = capsule(jaxcc::execute_nothing);
    targets["jaxcc_nothing"] = nothing;
    return targets;
  });
  m.def("types", [] {
    nb::dict types;
    types["jaxcc_fused_call"] = type(jaxcc::fused_type_id(), jaxcc::fused_type_info());
    types["jaxcc_move_call"] = type(jaxcc::move_type_id(), jaxcc::move_type_info());
    return types;
  });
  m.def(
      "has_kernel", [](const std::string& key) { return jaxcc::find_kernel(key).tile != nullptr; },
      "key"_a);
  m.def(
      "has_reduction",
      [](const std::string& key) { return jaxcc::find_combine(key).run != nullptr; }, "key"_a);
  m.def(
      "load_kernel",
      [](const std::string& key, const std::string& path) {
        nb::gil_scoped_release unlocked;
        return jaxcc::load_kernel(key, path);
      },
      "key"_a, "path"_a);
  m.def("set_process", &jaxcc::set_process, "process"_a, "first_device"_a);
  m.def(
      "create_channel",
      [](std::vector<int64_t> devices, std::vector<int32_t> pids, int64_t outbox, int64_t process) {
        nb::gil_scoped_release unlocked;
        std::string problem;
        std::string address = jaxcc::create_channel({std::move(devices), outbox}, std::move(pids),
                                                    process, jaxcc::time_limit(), &problem);
        return std::make_pair(address, problem);
      },
      "devices"_a, "pids"_a, "outbox"_a, "process"_a);
  m.def(
      "attach_channel",
      [](std::vector<int64_t> devices, std::vector<int32_t> pids, int64_t outbox, int64_t process,
         const std::string& address) {
        nb::gil_scoped_release unlocked;
        return jaxcc::attach_channel({std::move(devices), outbox}, std::move(pids), process,
                                     jaxcc::time_limit(), address);
      },
      "devices"_a, "pids"_a, "outbox"_a, "process"_a, "address"_a);
  m.def(
      "has_channel",
      [](std::vector<int64_t> devices, int64_t outbox) {
        return jaxcc::find_channel({std::move(devices), outbox}) != nullptr;
      },
      "devices"_a, "outbox"_a);
}
