/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one head's tile of queries and its gradients, of REAL: op_attention.c includes it
 * twice. Names of products and rows are macros, too: DENSE, SOFTMAX, TANH, SUM.
 *
 * A tile's scores are rows of `ld` elements, key 0 is the tile's first (a->low). Outside of what a
 * row sees they become 0, and so weigh nothing in the products of whole tiles.
 */

/* c[m, n] (rows ldc apart) = or += a[m, k] b[k, n], strides as the product has them */
static void PRODUCT(const attention_tile *t, size_t m, size_t n, size_t k, const REAL *a,
                    ptrdiff_t ras, ptrdiff_t cas, const REAL *b, ptrdiff_t rbs, ptrdiff_t cbs,
                    REAL *c, ptrdiff_t ldc, bool add)
{
    DENSE_ARGS d = {.n = n,
                    .k = k,
                    .a = a,
                    .ras = ras,
                    .cas = cas,
                    .b = b,
                    .rbs = rbs,
                    .cbs = cbs,
                    .c = c,
                    .ldc = ldc,
                    .add = add};
    t->table->DENSE(&d, 0, m);
}

/* The weights p of the tile's rows; slope, where there is a soft-cap: that of the cap. */
static void WEIGHTS(const attention_tile *t, const REAL *q, const REAL *k, REAL *p, REAL *slope)
{
    size_t n = t->high - t->low;
    PRODUCT(t, t->rows, n, t->d, q, t->q.row, t->q.column, k + (ptrdiff_t)t->low * t->k.row,
            t->k.column, t->k.row, p, (ptrdiff_t)n, false);
    for (size_t r = 0; r < t->rows; r++, p += n) {
        size_t begin = t->begin[r] - t->low, end = t->end[r] - t->low, seen = end - begin;
        REAL *x = p + begin;
        for (size_t i = 0; i < seen; i++)
            x[i] *= (REAL)t->scale;
        if (t->softcap > 0) {
            for (size_t i = 0; i < seen; i++)
                x[i] /= (REAL)t->softcap;
            t->table->TANH(x, x, seen);
            for (size_t i = 0; i < seen && slope; i++)
                slope[r * n + begin + i] = 1 - x[i] * x[i];
            for (size_t i = 0; i < seen; i++)
                x[i] *= (REAL)t->softcap;
        }
        if (seen)
            t->table->SOFTMAX(x, seen, x, seen, seen, 0, 1);
        memset(p, 0, begin * sizeof *p);
        memset(p + end, 0, (n - end) * sizeof *p);
    }
}

/* o [rows, e], of the tile. */
static void FORWARD(const attention_tile *t, const char *const *at, REAL *p, char *out)
{
    const REAL *q = (const REAL *)at[0] + t->q.at, *k = (const REAL *)at[1] + t->k.at,
               *v = (const REAL *)at[2] + t->v.at;
    WEIGHTS(t, q, k, p, NULL);
    size_t n = t->high - t->low;
    PRODUCT(t, t->rows, t->e, n, p, (ptrdiff_t)n, 1, v + (ptrdiff_t)t->low * t->v.row, t->v.row,
            t->v.column, (REAL *)out + t->o.at, t->o.row, false);
}

/* With g the gradient of o: dq of the tile's rows; dk and dv of the head's keys grow. p, dp, slope:
 * room for the tile's scores each. */
static void BACKWARD(const attention_tile *t, const char *const *at, REAL *p, REAL *dp, REAL *slope,
                     REAL *dq, REAL *dk, REAL *dv)
{
    const REAL *q = (const REAL *)at[0] + t->q.at, *k = (const REAL *)at[1] + t->k.at,
               *v = (const REAL *)at[2] + t->v.at, *o = (const REAL *)at[3] + t->o.at,
               *g = (const REAL *)at[4] + t->g.at;
    size_t n = t->high - t->low;
    WEIGHTS(t, q, k, p, slope);
    k += (ptrdiff_t)t->low * t->k.row;
    v += (ptrdiff_t)t->low * t->v.row;
    PRODUCT(t, n, t->e, t->rows, p, 1, (ptrdiff_t)n, g, t->g.row, t->g.column,
            dv + (ptrdiff_t)t->low * t->dv_row, t->dv_row, true);
    PRODUCT(t, t->rows, n, t->e, g, t->g.row, t->g.column, v, t->v.column, t->v.row, dp,
            (ptrdiff_t)n, false);
    for (size_t r = 0; r < t->rows; r++) {
        REAL sum = 0, *ds = p + r * n;
        const REAL *gr = g + (ptrdiff_t)r * t->g.row, * or = o + (ptrdiff_t)r * t->o.row;
        for (size_t i = 0; i < t->e; i++)
            sum += gr[(ptrdiff_t)i * t->g.column] * or [(ptrdiff_t)i * t->o.column];
        for (size_t i = 0; i < n; i++)
            ds[i] *= (dp[r * n + i] - sum) * (REAL)t->scale;
        for (size_t i = t->begin[r] - t->low; t->softcap > 0 && i < t->end[r] - t->low; i++)
            ds[i] *= slope[r * n + i];
    }
    PRODUCT(t, t->rows, t->d, n, p, (ptrdiff_t)n, 1, k, t->k.row, t->k.column, dq, t->dq_row,
            false);
    PRODUCT(t, n, t->d, t->rows, p, 1, (ptrdiff_t)n, q, t->q.row, t->q.column,
            dk + (ptrdiff_t)t->low * t->dk_row, t->dk_row, true);
}
