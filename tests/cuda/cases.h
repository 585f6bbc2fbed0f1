/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of test_cuda share: checks, random inputs that are the same on both devices, and
 * cases, whose results are compared.
 */
#ifndef TEST_CUDA_CASES_H
#define TEST_CUDA_CASES_H

#include "cuda/cuda.h"
#include "ops/ops.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- checks ---------------------------------------------------------------------------------- */

extern atomic_int n_failed, n_checks;

void check(bool ok, const char *what, const char *detail);

#define CHECK(what, condition) check(condition, what, #condition)

/* ---- times ----------------------------------------------------------------------------------- */

double now(void); /* seconds */

/* A part is what was done since the last one; its end says how long it took, and how much of that
 * went into inputs, the CPU's results and CUDA's. */
void begin_parts(void);
void end_part(const char *name);

/* ---- random inputs --------------------------------------------------------------------------- */

extern _Thread_local uint64_t seed;

double uniform(void); /* in (-1, 1) */

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[])                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Of any type: floats in (-scale, scale), integers too. */
qn_array *noise(qn_scope *s, qn_dtype type, double scale, int ndim, const int64_t *shape);
qn_array *f32(qn_scope *s, int ndim, const int64_t *shape); /* of 1.5 */

/* Integers 0 .. n - 1, now and then one outside. */
qn_array *indices(qn_scope *s, int64_t n, bool outside, int ndim, const int64_t *shape);

/* The evaluated array, retained; NULL: it failed. */
qn_array *keep(qn_scope *s, qn_array *a);

/* Of rope, for half a head (cases_rows.c). */
qn_array *frequencies(qn_scope *s, int64_t half);

/* Rows of a table of 40 and their norm (cases_rows.c). */
qn_array *embedded(qn_scope *s, qn_array *table, int64_t rows, int64_t n, double factor);

/* A weight in units of case_encoding (cases_units.c). */
qn_array *in_units(qn_scope *s, int64_t rows, int64_t columns);
void forget_weights(void); /* what in_units keeps to make the same again */

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct op_case {
    const char *name;
    qn_array *(*build)(qn_scope *s);
    double tolerance; /* of the normalised squared error; 0: the same bytes */
} op_case;

#define EXACT(name)                                                                                \
    {                                                                                              \
#name, op_##name, 0                                                                        \
    }
#define CLOSE(name)                                                                                \
    {                                                                                              \
#name, op_##name, 1e-11                                                                    \
    }
/* Long sums in another order. */
#define SUMMED(name)                                                                               \
    {                                                                                              \
#name, op_##name, 1e-9                                                                     \
    }
/* Queries and probabilities are bf16 there, on the CPU by tier; or a network's activations. */
#define ROUNDED(name)                                                                              \
    {                                                                                              \
#name, op_##name, 3e-5                                                                     \
    }
/* The same in f16. */
#define FINER(name)                                                                                \
    {                                                                                              \
#name, op_##name, 1e-6                                                                     \
    }
/* Computed on both devices; within the tolerance, or the same bytes. */
void compare_case(const op_case *c, qn_device *cpu, qn_device *cuda);
void compare_list(const op_case *cases, size_t n, qn_device *cpu, qn_device *cuda);

/* All of a file's. */
void compare_arrays(qn_device *cpu, qn_device *cuda);
void compare_products(qn_device *cpu, qn_device *cuda);
void compare_rows(qn_device *cpu, qn_device *cuda);
void compare_attention(qn_device *cpu, qn_device *cuda);
void compare_blocks(qn_device *cpu, qn_device *cuda);
void compare_exact(qn_device *cpu, qn_device *cuda);
void compare_units(qn_device *cpu, qn_device *cuda);

/* Which encoding in_units has. */
extern int case_encoding;

/* The only encoding that compare_units looks at, by its name; NULL: all. */
extern const char *only_encoding;

/* llama.c: a small Llama's greedy tokens; cuda may be NULL. */
void compare_llama(qn_device *cpu, qn_device *cuda, qn_dtype type);

#endif
