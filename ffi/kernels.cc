#include "kernels.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <shared_mutex>

namespace jaxcc {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::map<std::string, Kernel> kernels;

  Registry() {
    for (const auto& [key, kernel] : all_reduce_kernels()) kernels[key] = kernel;
  }
};

// Never destroyed: executables may outlive static objects.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

}  // namespace

Kernel find_kernel(const std::string& key) {
  std::shared_lock lock(registry().mutex);
  const auto found = registry().kernels.find(key);
  return found == registry().kernels.end() ? Kernel{} : found->second;
}

std::string load_kernel(const std::string& key, const std::string& path) {
  if (find_kernel(key).tile) return "";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  const auto* abi = static_cast<const int32_t*>(dlsym(library, "jaxcc_kernel_abi"));
  const auto tile = reinterpret_cast<jaxcc_tile_fn>(dlsym(library, "jaxcc_kernel_tile"));
  const auto total = reinterpret_cast<jaxcc_total_fn>(dlsym(library, "jaxcc_kernel_total"));
  std::string problem;
  if (!abi || !tile) {
    problem = path + " exports no jaxcc kernel";
  } else if (*abi != JAXCC_ABI) {
    problem = path + " has kernel ABI " + std::to_string(*abi) + ", this library has " +
              std::to_string(JAXCC_ABI);
  }
  if (!problem.empty()) {
    dlclose(library);
    return problem;
  }
  std::unique_lock lock(registry().mutex);
  registry().kernels.emplace(key, Kernel{tile, total, {}});
  return "";
}

}  // namespace jaxcc
