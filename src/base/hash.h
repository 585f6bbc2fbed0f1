/* SPDX-License-Identifier: Apache-2.0
 *
 * A seeded 64-bit hash of bytes for tables whose keys come from a file: two words are multiplied
 * to 128 bits and folded. The seed is drawn per table, so that a hostile file cannot choose keys
 * that collide. With a seed that is known, as files that sleep have it, it tells accidents alone.
 */
#ifndef QN_BASE_HASH_H
#define QN_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t qn__hash_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t qn__hash_bytes(const void *data, size_t n, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = seed ^ (n * 0x9e3779b97f4a7c15u), a = 0, b = 0;
    for (; n > 16; n -= 16, p += 16) {
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 8);
        h = qn__hash_mix(a ^ 0x8bb84b93962eacc9u, b ^ h);
    }
    if (n >= 8) {
        memcpy(&a, p, 8);
        memcpy(&b, p + n - 8, 8);
    } else if (n >= 4) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        a = low;
        b = high;
    } else if (n > 0) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[n >> 1] << 8 | p[n - 1];
        b = 0;
    }
    return qn__hash_mix(qn__hash_mix(a ^ 0x8bb84b93962eacc9u, b ^ h) ^ 0x2d358dccaa6c78a5u,
                        h ^ 0x4b33a62ed433d4a3u);
}

/* A seed that another process cannot guess; where the system has none, the clock and the address
 * of the stack. */
static inline uint64_t qn__hash_seed(void)
{
    uint64_t seed = 0;
    if (getentropy(&seed, sizeof seed) != 0)
        seed = (uint64_t)(uintptr_t)&seed * 0x9e3779b97f4a7c15u ^ (uint64_t)clock();
    return seed;
}

#endif
