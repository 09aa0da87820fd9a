// Copies past the cache, for results that would only push other data out of it.
#pragma once

#include <stdint.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace jaxcc {

// As memcpy, with stores that bypass the cache where the processor has them. Other threads see what
// was written once the platform has left the collective.
inline void stream(void* to, const void* from, int64_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
#ifdef __SSE2__
  int64_t head = -reinterpret_cast<uintptr_t>(out) & 15;
  if (head > bytes) head = bytes;
  __builtin_memcpy(out, in, head);
  int64_t i = head;
  for (; i + 64 <= bytes; i += 64) {
    for (int64_t j = i; j < i + 64; j += 16) {
      const __m128i lane = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + j));
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + j), lane);
    }
  }
  out += i;
  in += i;
  bytes -= i;
#endif
  __builtin_memcpy(out, in, bytes);
}

}  // namespace jaxcc
