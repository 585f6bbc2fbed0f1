/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of x as signed bytes with a scale for each group of columns, over vec_*.h; int8.inl says
 * what they are for.
 */

/* Columns of x that share a scale are a step of the weight's, but not less and not more than this.
 */
enum { INT8_SPAN = 32, INT8_MOST_SPAN = 64 };

static size_t int8_padded(const qn__layout *l, size_t k)
{
    return (k + l->columns - 1) / l->columns * l->columns;
}

static size_t int8_span(const qn__layout *l)
{
    return l->step > INT8_SPAN ? l->step : INT8_SPAN;
}

/* What a byte is worth, and the bytes to 1; the former is no number if a column is none. */
typedef struct int8_scale {
    float value, inverse;
} int8_scale;

/* Of `span` columns from x on, of which n exist; `least`: below that no magnitude counts as the
 * largest. */
static int8_scale int8_scale_of(const float *x, size_t n, size_t span, float least)
{
    vf most = v_set(least), sum = v_set(0.0f);
    for (size_t i = 0; i < span; i += 16) {
        size_t have = n > i ? (n - i < 16 ? n - i : 16) : 0;
        vf v = have == 16 ? v_load(x + i) : v_load_n(x + (have ? i : 0), have, 0.0f);
        most = v_max(v_float(vi_and(v_bits(v), vi_set(0x7fffffffu))), most);
        sum = v_fma(v, v_set(0.0f), sum); /* NaN if any is no number or infinite */
    }
    float top = v_top(most), inverse = top > 0.0f ? 127.0f / top : 0.0f;
    if (!(inverse <= 3.4028235e38f)) /* the largest is a denormal */
        inverse = 0.0f;
    return (int8_scale){top / 127.0f + v_sum(sum), inverse};
}

/* Those columns as bytes. */
static void int8_quantise(const float *x, size_t n, size_t span, float inverse, int8_t *bytes)
{
    for (size_t i = 0; i < span; i += 16) {
        size_t have = n > i ? (n - i < 16 ? n - i : 16) : 0;
        vf v = have == 16 ? v_load(x + i) : v_load_n(x + (have ? i : 0), have, 0.0f);
        vi_store_low(bytes + i, v_round(v_mul(v, v_set(inverse))));
    }
}

/* A row of k columns to be quantised; `whole`: it has one scale. */
typedef struct int8_row {
    const float *x;
    size_t k;
    int whole;
    int8_scale of;
} int8_row;

static int8_row int8_row_of(const qn__layout *l, const float *x, size_t k, int whole)
{
    int8_row row = {x, k, whole, {0.0f, 0.0f}};
    if (whole)
        row.of = int8_scale_of(x, k, int8_padded(l, k), QN__LEAST_OF_ROW);
    return row;
}

/* `span` columns from c on, and what a byte is worth; past the last there are zeros. */
static float int8_columns(const int8_row *row, size_t c, size_t span, int8_t *bytes)
{
    size_t n = c < row->k ? row->k - c : 0;
    const float *at = row->x + (n ? c : 0);
    int8_scale of = row->whole ? row->of : int8_scale_of(at, n, span, 0.0f);
    int8_quantise(at, n, span, of.inverse, bytes);
    return of.value;
}

static int32_t int8_sum(const int8_t *bytes, size_t n)
{
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += bytes[i];
    return sum;
}
