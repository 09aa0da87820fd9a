// The XLA FFI target `jaxcc_fused`: one kernel, run by a group of ranks on the buffers of all of
// them.
//
// Operands: order, scalars..., tensor 0's operands..., tensor 1's operands..., and so on. Results:
// order, tensor 0's results..., and so on. The order buffer is copied through; it makes XLA run a
// program's collectives in one order on all ranks. Attributes:
//   kernel    string   key of the kernel
//   op        string   name for messages
//   devices   i64[]    local device ordinals: groups of `ranks`, one after another
//   ranks     i64      ranks in a group
//   scalars   i64      operands that all tensors share
//   operands  i64      of each tensor
//   results   i64      of each tensor
//   totals    i64      of the results, numbers that all elements of a tensor make
//   row       i64      elements that the kernel needs together, 1 if any
//   geometry  i64[]    outer and extent of each tensor
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jaxcc {

// The type of what instantiate_fused leaves for execute_fused.
XLA_FFI_TypeId* fused_type_id();
const XLA_FFI_TypeInfo* fused_type_info();

XLA_FFI_Error* instantiate_fused(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* execute_fused(XLA_FFI_CallFrame* frame);

}  // namespace jaxcc
