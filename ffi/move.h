// The XLA FFI target `jaxcc_move`: a list of moves from the operands of a group of ranks to their
// results.
//
// Operands: order, place, x. Results: order, y, which is no operand's buffer. The order buffer and
// the place are those of fused.h. Attributes:
//   op        string   name for messages
//   devices   i64[]    as in fused.h
//   ranks     i64      ranks in a group
//   outbox    i64      as in fused.h
//   combine   string   the reduction of moves that reduce, as <op>.<dtype>; empty if none does
//   bytes     i64[2]   of x and of y
//   moves     i64[]    of each move: source rank (-1: zeros, -2: the reduction of all ranks' x),
//                      target rank, bytes, and where they lie in x and in y: offset, bytes in a run
//                      and from one run to the next. Each byte of every y is written once.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jaxcc {

// The type of what instantiate_move leaves for execute_move.
XLA_FFI_TypeId* move_type_id();
const XLA_FFI_TypeInfo* move_type_info();

XLA_FFI_Error* instantiate_move(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* execute_move(XLA_FFI_CallFrame* frame);

}  // namespace jaxcc
