/* SPDX-License-Identifier: Apache-2.0
 *
 * Caches in blocks (pages.cu) on a processor: rows that are written are, to the bit, what the
 * encoders and the packing of quant/ make of them, whatever is in them; and pages that are taken
 * apart are the decoders' values.
 */
extern "C" {
#include "quant/layout.h"
}
#include "lanes.h"

uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which)
{
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(all >> (8 * (which >> (4 * i) & 7)) & 255) << (8 * i);
    return v;
}

#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__
#include "cuda/pages.cu"

enum { HEADS = 2, PAGES = 5, ROWS = 20, PLACES = 6 };

static int n_failed, n_checks;

/* Whether the device keeps it (op_cache.c). */
static bool is_kept(int id)
{
    return id == QN__Q4_0 || id == QN__Q4_1 || id == QN__Q5_0 || id == QN__Q5_1 || id == QN__Q8_0 ||
           id == QN__IQ4_NL || (qn__encodings[id].bits && !qn__encodings[id].zeroed);
}

static qn__cuda_units as_data(int id)
{
    const qn__layout *l = qn__layout_of(QN__UNITS_OF(id));
    return {(int32_t)QN__UNITS_OF(id), l->columns,        l->unit_bytes,      l->zero, l->biased,
            l->encoding->bits,         l->encoding->group, l->encoding->scale, 0};
}

static float some(void)
{
    return (float)(rand() - RAND_MAX / 2) / (float)(RAND_MAX / 2);
}

/* Rows of ordinary values, and of those at which a rule may break: zeros, one value alone, values
 * between two codes, the largest and the least that there are, and what is no number. */
static void fill_row(float *x, int d, int kind)
{
    for (int i = 0; i < d; i++)
        switch (kind) {
        case 0: x[i] = 0; break;
        case 1: x[i] = -2.5f; break;
        case 2: x[i] = (float)(i % 33 - 16) * 0.5f; break;
        case 3: x[i] = some() * 3e38f; break;
        case 4: x[i] = some() * 1e-42f; break;
        case 5: x[i] = i == 7 ? NAN : some(); break;
        case 6: x[i] = i == d - 1 ? -INFINITY : some(); break;
        case 7: x[i] = i % 2 ? 1.0f : -1.0f; break;
        case 8: x[i] = fabsf(some()) + 3; break;
        case 9: x[i] = some() * 1e-6f; break;
        case 10: x[i] = some() * 1e-8f; break;
        default: x[i] = some() * 4;
        }
}

/* What the CPU has in the place of each row. */
static void expect_row(const qn__layout *l, char *page, const float *x, int d, int at)
{
    const size_t bytes = qn__encoding_row_bytes(l->encoding, d);
    std::vector<char> blocks(bytes, (char)0xff);
    bool finite = true;
    for (int i = 0; i < d; i++)
        finite = finite && std::isfinite(x[i]);
    if (finite)
        l->encoding->encode(l->encoding, x, NULL, (size_t)d / l->encoding->block_elements,
                            blocks.data());
    qn__layout_pack(l, page, PAGE, d, blocks.data(), bytes, at, 1);
}

/* Threads one after the other, where lanes exchange nothing. */
template <typename F> static void run_blocks(unsigned blocks, const F &kernel)
{
    blockDim = make_uint3(THREADS, 1, 1);
    gridDim = make_uint3(blocks, 1, 1);
    for (unsigned b = 0; b < blocks; b++)
        for (unsigned t = 0; t < THREADS; t++) {
            blockIdx = make_uint3(b, 0, 0);
            threadIdx = make_uint3(t, 0, 0);
            kernel();
        }
}

/* Blocks of a warp. */
template <typename F> static void run_warps(unsigned blocks, const F &kernel)
{
    blockDim = make_uint3(LANES, 1, 1);
    gridDim = make_uint3(blocks, 1, 1);
    for (unsigned b = 0; b < blocks; b++) {
        blockIdx = make_uint3(b, 0, 0);
        run_threads(LANES, 0, [&](int) { kernel(); });
    }
}

static void check(bool ok, const char *name, const char *what, int d)
{
    n_checks++;
    n_failed += !ok;
    if (!ok)
        printf("%s, heads of %d: %s\n", name, d, what);
}

/* A cache's pages as the CPU has them, and as the kernel writes them: both begin with the same
 * bytes, so that what a kernel writes elsewhere shows. */
struct cache {
    int d;
    size_t head;
    std::vector<char> want, got;
};

/* By a Hadamard matrix: sums and differences of elements 1, 2, 4 ... apart, then the scale. */
static void turn_row(float *x, int d, int n, float scale)
{
    for (int apart = 1; apart < n; apart *= 2)
        for (int i = 0; i < d; i++)
            if (!(i & apart)) {
                const float low = x[i], high = x[i + apart];
                x[i] = low + high;
                x[i + apart] = low - high;
            }
    for (int i = 0; i < d; i++)
        x[i] *= scale;
}

/* turned: they are so on their way. */
static void write_case(int id, cache &c, int slot_step, bool turned)
{
    const float scale = 0.125f;
    const int n = turned ? c.d & -c.d : 0;
    const qn__layout *l = qn__layout_of(QN__UNITS_OF(id));
    c.head = qn__layout_bytes(QN__UNITS_OF(id), PAGE, c.d);
    c.want.assign(c.head * HEADS * PAGES, 0);
    c.got = c.want;
    std::vector<float> rows((size_t)HEADS * ROWS * c.d);
    std::vector<int32_t> slots(ROWS);
    for (int i = 0; i < ROWS; i++) {
        slots[i] = i == 9 ? -1 : i == 11 ? PAGES * PAGE + 3 : i * slot_step % (PAGES * PAGE);
        for (int h = 0; h < HEADS; h++)
            fill_row(&rows[(size_t)(h * ROWS + i) * c.d], c.d, (i + h) % 16);
    }
    std::vector<float> kept = rows;
    for (int i = 0; i < ROWS; i++)
        for (int h = 0; h < HEADS && slots[i] >= 0 && slots[i] < PAGES * PAGE; h++) {
            float *row = &kept[(size_t)(h * ROWS + i) * c.d];
            if (turned)
                turn_row(row, c.d, n, scale);
            expect_row(l, &c.want[(size_t)(slots[i] / PAGE * HEADS + h) * c.head], row, c.d,
                       slots[i] % PAGE);
        }
    qn__cuda_encode_args a = {};
    for (int i = 0; i < 2; i++) { /* the first half of the rows, and the others */
        a.at[3 * i] = rows.data() + (size_t)i * ROWS / 2 * c.d;
        a.at[3 * i + 1] = slots.data() + i * ROWS / 2;
        a.at[3 * i + 2] = c.got.data();
        a.part[i] = {ROWS * c.d, c.d,      (int64_t)c.head * HEADS, (int64_t)c.head, PAGES, HEADS,
                     ROWS / 2,   c.d, i, n, scale, as_data(id)};
    }
    a.blocks = 2;
    run_warps(5, [&] {
        if (id == QN__IQ4_NL && c.d <= 128)
            write_curve_1(a);
        else if (id == QN__IQ4_NL)
            write_curve_2(a);
        else if (c.d <= 128)
            write_blocks_1(a);
        else
            write_blocks_2(a);
    });
    check(c.want == c.got, qn__encodings[id].name,
          turned ? "what is turned and written" : "what is written", c.d);
}

/* half: the type of a float of 16 bits. */
static float f32_of_half(int half, uint16_t h)
{
    return half == QN_F16 ? __half2float(__ushort_as_half(h)) : f32_of_bf16(h);
}

/* Pages in the order of a table, or by their numbers; in bf16 or f16, or in f32 (half is 0). */
static void unpack_case(int id, const cache &c, bool keys, bool by_number, int half)
{
    const qn__layout *l = qn__layout_of(QN__UNITS_OF(id));
    int32_t table[PLACES] = {3, -1, 0, 4, PAGES, 3}, places[PLACES];
    const int n = by_number ? PAGES : PLACES;
    std::vector<float> want((size_t)n * HEADS * PAGE * c.d, 7), got = want, row(c.d);
    std::vector<uint16_t> halves(want.size());
    qn__cuda_unpack_pages_args a = {};
    a.at[!keys] = (void *)c.want.data();
    a.at[2] = table;
    a.at[3 + !keys] = half ? (void *)halves.data() : (void *)got.data();
    a.at[5] = by_number ? NULL : places;
    a.page[!keys] = (int64_t)c.head * HEADS;
    a.head[!keys] = (int64_t)c.head;
    a.pages = PAGES;
    a.sequences = 2;
    a.width = PLACES / 2;
    a.heads = HEADS;
    a.d[!keys] = c.d;
    a.half = half;
    a.units[!keys] = as_data(id);
    run_blocks(PLACES * HEADS, [&] { unpack_pages(a); });
    bool placed = true, same = true;
    for (int i = 0; i < PLACES; i++) {
        const bool inside = table[i] >= 0 && table[i] < PAGES;
        placed = placed && (by_number || places[i] == (inside ? i : -1));
        for (int h = 0; h < HEADS && inside; h++)
            for (int r = 0; r < PAGE; r++) {
                const int to = (by_number ? table[i] : i) * HEADS + h;
                qn__layout_row_values(l, &c.want[(size_t)(table[i] * HEADS + h) * c.head], c.d, r,
                                      row.data());
                for (int k = 0; k < c.d; k++) {
                    const size_t at = (size_t)to * PAGE * c.d +
                                      (size_t)(keys ? key_place(c.d, r, k) : r * c.d + k);
                    const float v = half ? f32_of_half(half, halves[at]) : got[at],
                                w = half ? f32_of_half(half, half_of_f32(half, row[k])) : row[k];
                    same = same && (!memcmp(&v, &w, sizeof v) || (v != v && w != w));
                }
            }
    }
    check(placed, qn__encodings[id].name, "where pages are", c.d);
    check(same, qn__encodings[id].name, keys ? "keys taken apart" : "values taken apart", c.d);
}

/* Pages of floats of 16 bits as f32, wherever they lie. */
static void widen_case(int half, int d)
{
    const int64_t head = PAGE * d, apart = head + 3;
    int32_t table[PLACES] = {3, -1, 0, 4, PAGES, 3};
    std::vector<uint16_t> pages((size_t)(PAGES * HEADS * apart));
    std::vector<float> got((size_t)(PAGES * HEADS * head), 7);
    for (size_t i = 0; i < pages.size(); i++)
        pages[i] = half_of_f32(half, some() * 50);
    qn__cuda_unpack_pages_args a = {};
    a.at[1] = pages.data();
    a.at[2] = table;
    a.at[4] = got.data();
    a.page[1] = HEADS * apart * 2;
    a.head[1] = apart * 2;
    a.pages = PAGES;
    a.sequences = 2;
    a.width = PLACES / 2;
    a.heads = HEADS;
    a.d[1] = d;
    a.units[1].type = half;
    run_blocks(PLACES * HEADS, [&] { unpack_pages(a); });
    bool same = true;
    for (int p = 0; p < PAGES * HEADS; p++)
        for (int64_t i = 0; i < head; i++) {
            const bool wanted = p / HEADS == 0 || p / HEADS == 3 || p / HEADS == 4;
            const float v = f32_of_half(half, pages[(size_t)(p * apart + i)]);
            same = same && got[(size_t)(p * head + i)] == (wanted ? v : 7);
        }
    check(same, half == QN_F16 ? "f16" : "bf16", "floats as f32", d);
}

int main()
{
    static const int heads[] = {32, 96, 128, 256};
    for (int id = 0; id < QN__ENCODING_COUNT; id++)
        for (int d : heads) {
            if (!is_kept(id) || d % qn__encodings[id].block_elements)
                continue;
            cache c = {d};
            write_case(id, c, 7, true);
            if (!qn__encodings[id].bits || qn__encodings[id].scale == QN__BF16) /* it takes long */
                write_case(id, c, 1, false);
            unpack_case(id, c, true, false, QN_BF16);
            unpack_case(id, c, false, true, QN_F16);
            unpack_case(id, c, false, false, 0);
            unpack_case(id, c, true, true, 0);
        }
    for (int d : heads) {
        widen_case(QN_F16, d);
        widen_case(QN_BF16, d);
    }
    printf("test_pages: %d checks, %d failed\n", n_checks, n_failed);
    return n_failed > 0;
}
