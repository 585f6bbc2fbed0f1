/* SPDX-License-Identifier: Apache-2.0
 *
 * Searching for scales; search.h has the idea.
 */
#include "quant/search.h"

#include <math.h>

enum { LANES = 8 };

/* To a whole number, |v| < 2^22. */
static inline float whole(float v)
{
    return (v + 12582912.0f) - 12582912.0f;
}

static inline float sum_lanes(const float *a)
{
    return ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7]));
}

bool qn__search_begin(const float *values, const float *importance, int n, float *x, float *w)
{
    float most = 0, heaviest = 0;
    for (int j = 0; j < n; j++) {
        x[j] = qn__clamp(values[j], -0x1p30f, 0x1p30f);
        most = fabsf(x[j]) > most ? fabsf(x[j]) : most;
    }
    if (most < 0x1p-26f)
        return false;
    for (int j = 0; importance && j < n; j++)
        heaviest = importance[j] > heaviest ? importance[j] : heaviest;
    if (heaviest > 0) { /* what has no weight at all still wants a value near its own */
        for (int j = 0; j < n; j++)
            w[j] = qn__clamp(importance[j] / heaviest, 0x1p-20f, 1);
    } else {
        for (int j = 0; j < n; j++)
            w[j] = 1;
    }
    return true;
}

static inline qn__fit fit_codes(const float *x, const float *w, int n, float low, float high,
                                float inverse, float shift)
{
    float wl[LANES] = {0}, wll[LANES] = {0}, wxl[LANES] = {0};
    for (int j = 0; j < n; j += LANES)
        for (int k = 0; k < LANES; k++) {
            float l = whole(qn__clamp(x[j + k] * inverse + shift, low, high));
            float weighted = w[j + k] * l;
            wl[k] += weighted;
            wll[k] += weighted * l;
            wxl[k] += weighted * x[j + k];
        }
    return (qn__fit){sum_lanes(wl), sum_lanes(wll), sum_lanes(wxl)};
}

/* What a sub-block's values are without codes. */
typedef struct moments {
    float weight, mean, low, high;
} moments;

static moments measure(const float *x, const float *w, int n)
{
    float sw[LANES] = {0}, swx[LANES] = {0};
    moments m = {.low = x[0], .high = x[0]};
    for (int j = 0; j < n; j += LANES)
        for (int k = 0; k < LANES; k++) {
            sw[k] += w[j + k];
            swx[k] += w[j + k] * x[j + k];
            m.low = x[j + k] < m.low ? x[j + k] : m.low;
            m.high = x[j + k] > m.high ? x[j + k] : m.high;
        }
    m.weight = sum_lanes(sw);
    m.mean = sum_lanes(swx) / m.weight;
    return m;
}

/* The best scale and min for codes, and by how much they lower the error. x was centred: its mean
 * is 0, and m->mean is what it was. */
static float solve_above(const qn__fit *f, const moments *m, float *scale, float *min)
{
    float spread = f->wll - f->wl * f->wl / m->weight;
    if (spread > 1e-6f * f->wll && f->wxl > 0) {
        *scale = f->wxl / spread;
        *min = *scale * (f->wl / m->weight) - m->mean;
        if (*min >= 0)
            return *scale * f->wxl;
    }
    *min = 0; /* all values are above 0, or one code serves all */
    float wxl = f->wxl + m->mean * f->wl;
    if (!(f->wll > 0 && wxl > 0))
        return -INFINITY;
    *scale = wxl / f->wll;
    return *scale * wxl - m->weight * m->mean * m->mean;
}

void qn__search_above(const float *x, const float *w, int n, int top, float reach, int trials,
                      float *scale, float *min)
{
    float centred[32];
    moments m = measure(x, w, n);
    float low = m.low < 0 ? m.low : 0;
    *scale = 0;
    *min = -m.mean > 0 ? -m.mean : 0;
    if (!(m.high - low > 0))
        return;
    for (int j = 0; j < n; j++)
        centred[j] = x[j] - m.mean;
    float best = -INFINITY;
    for (int t = 0; t < trials; t++) {
        float steps = (float)top + reach * (2 * (float)t / (float)(trials - 1) - 1);
        float inverse = steps / (m.high - low), s, b;
        qn__fit f = fit_codes(centred, w, n, 0, (float)top, inverse, (m.mean - low) * inverse);
        float gain = solve_above(&f, &m, &s, &b);
        if (gain > best) {
            best = gain;
            *scale = s;
            *min = b;
        }
    }
    for (int t = 0; t < 2 && *scale > 0; t++) {
        float inverse = 1 / *scale, s, b;
        qn__fit f = fit_codes(centred, w, n, 0, (float)top, inverse, (m.mean + *min) * inverse);
        float gain = solve_above(&f, &m, &s, &b);
        if (!(gain > best))
            break;
        best = gain;
        *scale = s;
        *min = b;
    }
}

float qn__search_around(const float *x, const float *w, int n, int low, int high, float reach,
                        int trials)
{
    float most = 0, best = 0, scale = 0;
    for (int j = 0; j < n; j++)
        most = fabsf(x[j]) > fabsf(most) ? x[j] : most;
    if (most == 0)
        return 0;
    for (int side = 0; side < 2; side++) {
        int end = side ? high : low;
        for (int t = 0; t < trials; t++) {
            float steps = (float)end + reach * (2 * (float)t / (float)(trials - 1) - 1);
            qn__fit f = fit_codes(x, w, n, (float)low, (float)high, steps / most, 0);
            float gain = f.wll > 0 ? f.wxl * f.wxl / f.wll : 0;
            if (gain > best) {
                best = gain;
                scale = f.wxl / f.wll;
            }
        }
    }
    for (int t = 0; t < 2 && scale != 0; t++) {
        qn__fit f = fit_codes(x, w, n, (float)low, (float)high, 1 / scale, 0);
        float gain = f.wll > 0 ? f.wxl * f.wxl / f.wll : 0;
        if (!(gain > best))
            break;
        best = gain;
        scale = f.wxl / f.wll;
    }
    return scale;
}

static inline float error_of(const float *x, const float *w, int n, float low, float high,
                             float scale, float min, qn__fit *fit)
{
    float inverse = qn__inverse(scale), shift = min * inverse;
    float wl[LANES] = {0}, wll[LANES] = {0}, wxl[LANES] = {0}, error[LANES] = {0};
    for (int j = 0; j < n; j += LANES)
        for (int k = 0; k < LANES; k++) {
            float l = whole(qn__clamp(x[j + k] * inverse + shift, low, high));
            float off = x[j + k] - (scale * l - min), weighted = w[j + k] * l;
            error[k] += w[j + k] * (off * off);
            wl[k] += weighted;
            wll[k] += weighted * l;
            wxl[k] += weighted * x[j + k];
        }
    *fit = (qn__fit){sum_lanes(wl), sum_lanes(wll), sum_lanes(wxl)};
    return sum_lanes(error);
}

float qn__error_above(const float *x, const float *w, int n, int top, float scale, float min,
                      qn__fit *fit)
{
    return error_of(x, w, n, 0, (float)top, scale, min, fit);
}

float qn__error_around(const float *x, const float *w, int n, int low, int high, float scale,
                       qn__fit *fit)
{
    return error_of(x, w, n, (float)low, (float)high, scale, 0, fit);
}

void qn__codes_above(const float *x, int n, int top, float scale, float min, uint8_t *codes)
{
    float inverse = qn__inverse(scale), shift = min * inverse;
    for (int j = 0; j < n; j++)
        codes[j] = (uint8_t)qn__round(qn__clamp(x[j] * inverse + shift, 0, (float)top));
}

void qn__codes_around(const float *x, int n, int low, int high, float scale, uint8_t *codes)
{
    float inverse = qn__inverse(scale);
    for (int j = 0; j < n; j++)
        codes[j] = (uint8_t)(qn__round(qn__clamp(x[j] * inverse, (float)low, (float)high)) - low);
}
