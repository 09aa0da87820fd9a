// What a generated kernel and the code that calls it agree on. Plain C types: no XLA, CUDA or C++
// header is needed to compile either side. A change here changes JAXCC_ABI.
#pragma once

#include <stdint.h>

#define JAXCC_ABI 3

// Marks the functions of this folder: part of a kernel, on whichever side it is compiled for.
#ifdef __CUDACC__
#define JAXCC_FN __device__ __forceinline__
#else
#define JAXCC_FN inline __attribute__((always_inline))
#endif

// A tile: a contiguous run of elements of one whole tensor, all in the slice of one rank (its
// owner).
//
// A tensor is divided among the ranks of a team; a group is one or more teams, one after another,
// each with tensors of its own. What one team sends, another receives, rank by rank.
//
// Every rank passes the same list of buffers: first the scalars, in blocks that one or more tensors
// share, then each tensor's operands, then each tensor's results. A buffer is whole (the tensor's
// full size: reduced operands, replicated operands, gathered results, indexed by the flat index in
// the whole tensor) or a slice (the owner's block: sliced operands and results, indexed by the flat
// index minus `shift`).
struct jaxcc_tile {
  void* const* const* buffers;  // of the owner's team: buffers[rank][index]
  void* const* const* targets;  // of the team that it sends to; null if there is none
  int32_t ranks;                // in a team
  int32_t owner;                // its rank in the team
  int32_t receives;             // 1 if a team sends to the owner's
  int32_t kind;                 // which of the kernel's programs the tensor is for
  int32_t first_scalar;         // index in buffers[rank] of this tensor's first scalar
  int32_t first_operand;        // of its first operand
  int32_t first_result;         // and of its first result
  int32_t stream;  // 1 if results are too large to stay in cache: bypass it when storing
  int64_t begin;   // flat range [begin, end) in the whole tensor
  int64_t end;
  int64_t shift;             // flat index in the whole tensor minus index in the owner's block
  struct jaxcc_part* parts;  // one for each total; the tile adds what its elements make
};

// What one total, a reduction over all elements of a tensor, is over some of them: 8 bytes, of a
// type that the kernel knows, if any element was seen.
struct jaxcc_part {
  uint64_t value;
  int64_t seen;
};

// All parts of one team's tensor: of rank r those from first + r * stride, `count` times `step` of
// them, each time one for each total.
struct jaxcc_parts {
  void* const* const* buffers;  // of the team
  int32_t ranks;
  int32_t kind;
  int32_t first_result;
  int32_t step;
  const struct jaxcc_part* first;
  int64_t stride;
  int64_t count;
};

// Reduces, computes and stores one tile: reads whole operands of every rank, writes gathered
// results to every rank, sliced results to the owner, and what is sent to the ranks of the team
// that receives it, with zeros for its own if nobody sends to that. It may not block, allocate or
// fail.
typedef void (*jaxcc_tile_fn)(const struct jaxcc_tile*);

// Reduces the parts of one tensor, in the order of ranks, and stores its totals for every rank.
typedef void (*jaxcc_total_fn)(const struct jaxcc_parts*);

// Every generated host kernel exports these names; the last if it has totals.
//   extern "C" const int32_t jaxcc_kernel_abi;                    == JAXCC_ABI
//   extern "C" void jaxcc_kernel_tile(const struct jaxcc_tile*);
//   extern "C" void jaxcc_kernel_total(const struct jaxcc_parts*);
