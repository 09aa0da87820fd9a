// Copies past the cache, for results that would only push other data out of it.
#pragma once

#include <stdint.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace jaxcc {

constexpr int64_t kLine = 64;  // bytes that the processor moves together

#ifdef __SSE2__
// Writes a whole line past the cache.
inline void stream_line(char* to, const char* from) {
#ifdef __AVX512F__
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#else
  for (int64_t i = 0; i < kLine; i += 16) {
    const __m128i lane = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), lane);
  }
#endif
}
#endif

// As memcpy, with stores that bypass the cache where the processor has them. Other threads see what
// was written once the platform has left the collective.
//
// Only whole lines: a part of one, past the cache, holds up the stores behind it for as long as
// many lines take.
inline void stream(void* to, const void* from, int64_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
#ifdef __SSE2__
  int64_t done = -reinterpret_cast<uintptr_t>(out) & (kLine - 1);
  if (done > bytes) done = bytes;
  __builtin_memcpy(out, in, done);
  for (; done + kLine <= bytes; done += kLine) stream_line(out + done, in + done);
  out += done;
  in += done;
  bytes -= done;
#endif
  __builtin_memcpy(out, in, bytes);
}

// Either way.
inline void copy(void* to, const void* from, int64_t bytes, bool past_cache) {
  if (bytes == 0) return;  // what is empty may have no address
  if (past_cache) {
    stream(to, from, bytes);
  } else {
    __builtin_memcpy(to, from, bytes);
  }
}

}  // namespace jaxcc
