// What a generated kernel and the code that calls it agree on. Plain C types: no XLA, CUDA or C++
// header is needed to compile either side. A change here changes JAXCC_ABI.
#pragma once

#include <stdint.h>

#define JAXCC_ABI 2

// Marks the functions of this folder: part of a kernel, on whichever side it is compiled for.
#ifdef __CUDACC__
#define JAXCC_FN __device__ __forceinline__
#else
#define JAXCC_FN inline __attribute__((always_inline))
#endif

// A tile: a contiguous run of elements of one whole tensor, all in the slice of one rank (its
// owner).
//
// Every rank passes the same list of buffers: first the scalars that all tensors share, then each
// tensor's operands, then each tensor's results. A buffer is whole (the tensor's full size: reduced
// operands, replicated operands, gathered results, indexed by the flat index in the whole tensor)
// or a slice (the owner's block: sliced operands and results, indexed by the flat index minus
// `shift`).
struct jaxcc_tile {
  void* const* const* buffers;  // buffers[rank][index]
  int32_t ranks;
  int32_t owner;
  int32_t first_operand;  // index in buffers[rank] of this tensor's first operand
  int32_t first_result;   // and of its first result
  int64_t begin;          // flat range [begin, end) in the whole tensor
  int64_t end;
  int64_t shift;             // flat index in the whole tensor minus index in the owner's block
  int32_t stream;            // 1 if results are too large to stay in cache: bypass it when storing
  struct jaxcc_part* parts;  // one for each total; the tile adds what its elements make
};

// What one total, a reduction over all elements of a tensor, is over some of them: 8 bytes, of a
// type that the kernel knows, if any element was seen.
struct jaxcc_part {
  uint64_t value;
  int64_t seen;
};

// All parts of one tensor: of rank r those from first + r * stride, `count` for each total in turn.
struct jaxcc_parts {
  void* const* const* buffers;
  int32_t ranks;
  int32_t first_result;
  const struct jaxcc_part* first;
  int64_t stride;
  int64_t count;
};

// Reduces, computes and stores one tile: reads whole operands of every rank, writes gathered
// results to every rank and sliced results to the owner. It may not block, allocate or fail.
typedef void (*jaxcc_tile_fn)(const struct jaxcc_tile*);

// Reduces the parts of one tensor, in the order of ranks, and stores its totals for every rank.
typedef void (*jaxcc_total_fn)(const struct jaxcc_parts*);

// Every generated host kernel exports these names; the last if it has totals.
//   extern "C" const int32_t jaxcc_kernel_abi;                    == JAXCC_ABI
//   extern "C" void jaxcc_kernel_tile(const struct jaxcc_tile*);
//   extern "C" void jaxcc_kernel_total(const struct jaxcc_parts*);
