// The Python module jaxcc.runtime._ffi.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "fused.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class Pointer>
nb::capsule capsule(Pointer pointer) {
  return nb::capsule(reinterpret_cast<const void*>(pointer));
}

}  // namespace

NB_MODULE(_ffi, m) {
  m.def("registrations", [] {
    nb::dict fused;
    fused["instantiate"] = capsule(jaxcc::instantiate_fused);
    fused["execute"] = capsule(jaxcc::execute_fused);
    nb::dict targets;
    targets["jaxcc_fused"] = fused;
    return targets;
  });
  m.def("types", [] {
    nb::dict call;
    call["type_id"] = capsule(jaxcc::fused_type_id());
    call["type_info"] = capsule(jaxcc::fused_type_info());
    nb::dict types;
    types["jaxcc_fused_call"] = call;
    return types;
  });
  m.def(
      "has_kernel", [](const std::string& key) { return jaxcc::find_kernel(key).tile != nullptr; },
      "key"_a);
  m.def(
      "load_kernel",
      [](const std::string& key, const std::string& path) {
        nb::gil_scoped_release unlocked;
        return jaxcc::load_kernel(key, path);
      },
      "key"_a, "path"_a);
}
