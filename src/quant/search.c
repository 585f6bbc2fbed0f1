/* SPDX-License-Identifier: Apache-2.0
 *
 * Searching for scales; search.h has the idea.
 */
#include "quant/iq4.h"
#include "quant/search.h"

#include <math.h>

/* Four floats that every compiler keeps in one register. */
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t lane_mask __attribute__((vector_size(16)));

enum { LANES = 4 };

static inline lanes load_lanes(const float *p)
{
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float sum_lanes(lanes v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

static inline lanes either(lane_mask m, lanes a, lanes b)
{
    return (lanes)((m & (lane_mask)a) | (~m & (lane_mask)b));
}

static inline lanes nearest_whole(lanes v, float low, float high)
{
    lanes least = low - (lanes){0}, most = high - (lanes){0};
    v = either(v > least, v, least);
    v = either(v < most, v, most);
    return (v + 12582912.0f) - 12582912.0f;
}

/* The nearest of iq4's values; between two, the lower one. */
static inline lanes nearest_on_curve(lanes v)
{
    lanes l = (float)qn__iq4_values[0] - (lanes){0};
    for (int k = 1; k < 16; k++) {
        float a = (float)qn__iq4_values[k - 1], b = (float)qn__iq4_values[k];
        lanes step = (b - a) - (lanes){0};
        l += (lanes)((v > (a + b) / 2 - (lanes){0}) & (lane_mask)step);
    }
    return l;
}

static inline lanes nearest_code(const qn__grid *g, lanes v)
{
    return g->curve ? nearest_on_curve(v) : nearest_whole(v, (float)g->low, (float)g->high);
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

static inline qn__fit fit_codes(const qn__grid *g, const float *x, const float *w, int n,
                                float inverse, float shift)
{
    lanes wl = {0}, wll = {0}, wxl = {0};
    for (int j = 0; j < n; j += LANES) {
        lanes value = load_lanes(x + j), l = nearest_code(g, value * inverse + shift);
        lanes weighted = load_lanes(w + j) * l;
        wl += weighted;
        wll += weighted * l;
        wxl += weighted * value;
    }
    return (qn__fit){sum_lanes(wl), sum_lanes(wll), sum_lanes(wxl)};
}

/* What a sub-block's values are without codes. */
typedef struct moments {
    float weight, mean, low, high;
} moments;

static moments measure(const float *x, const float *w, int n)
{
    lanes weight = {0}, wx = {0};
    moments m = {.low = x[0], .high = x[0]};
    for (int j = 0; j < n; j += LANES) {
        weight += load_lanes(w + j);
        wx += load_lanes(w + j) * load_lanes(x + j);
    }
    for (int j = 1; j < n; j++) {
        m.low = x[j] < m.low ? x[j] : m.low;
        m.high = x[j] > m.high ? x[j] : m.high;
    }
    m.weight = sum_lanes(weight);
    m.mean = sum_lanes(wx) / m.weight;
    return m;
}

/* The best scale and min for codes; returns by how much they lower the error. x was centred: its
 * mean is 0, and m->mean is what it was. */
static float solve_above(const qn__grid *g, const qn__fit *f, const moments *m, qn__found *found)
{
    float spread = f->wll - f->wl * f->wl / m->weight;
    if (spread > 1e-6f * f->wll && f->wxl > 0) {
        found->scale = f->wxl / spread;
        found->min = found->scale * (f->wl / m->weight) - m->mean;
        found->stiff = spread;
        if (found->min >= 0 || g->signed_min)
            return found->scale * f->wxl;
    }
    found->min = 0; /* all values are above 0, or one code serves all */
    float wxl = f->wxl + m->mean * f->wl;
    if (!(f->wll > 0 && wxl > 0))
        return -INFINITY;
    found->scale = wxl / f->wll;
    found->stiff = f->wll;
    return found->scale * wxl - m->weight * m->mean * m->mean;
}

static float trial_step(const qn__grid *g, int t)
{
    return g->reach * (2 * (float)t / (float)(g->trials - 1) - 1);
}

qn__found qn__search_above(const qn__grid *g, const float *x, const float *w, int n)
{
    float centred[32];
    moments m = measure(x, w, n);
    float low = m.low < 0 || g->signed_min ? m.low : 0, best = -INFINITY;
    qn__found found = {.min = m.mean < 0 || g->signed_min ? -m.mean : 0,
                       .weight = m.weight,
                       .wx = m.mean * m.weight};
    for (int j = 0; j < n; j++)
        centred[j] = x[j] - m.mean;
    for (int t = 0; t < g->trials + 4 && m.high > low; t++) {
        float inverse = ((float)g->high + trial_step(g, t)) / (m.high - low), from = low;
        if (t >= g->trials) { /* once more from what was best */
            inverse = qn__inverse(found.scale);
            from = -found.min;
        }
        qn__found next = found;
        qn__fit f = fit_codes(g, centred, w, n, inverse, (m.mean - from) * inverse);
        float gain = solve_above(g, &f, &m, &next);
        if (gain > best) {
            best = gain;
            found = next;
        } else if (t >= g->trials) {
            break;
        }
    }
    return found;
}

qn__found qn__search_around(const qn__grid *g, const float *x, const float *w, int n)
{
    float most = 0, best = 0;
    qn__found found = {0};
    for (int j = 0; j < n; j++)
        most = fabsf(x[j]) > fabsf(most) ? x[j] : most;
    for (int t = 0; t < 2 * g->trials + 2 && most != 0; t++) {
        float end = (float)(t < g->trials ? g->low : g->high);
        float inverse = (end + trial_step(g, t % g->trials)) / most;
        if (t >= 2 * g->trials)
            inverse = qn__inverse(found.scale);
        qn__fit f = fit_codes(g, x, w, n, inverse, 0);
        float gain = f.wll > 0 ? f.wxl * f.wxl / f.wll : 0;
        if (gain > best) {
            best = gain;
            found.scale = f.wxl / f.wll;
            found.stiff = f.wll;
        } else if (t >= 2 * g->trials) {
            break;
        }
    }
    return found;
}

float qn__search_step(const float *wanted, const float *stiff, int n, int low, int high)
{
    enum { TRIALS = 24 };
    float most = 0, least_error = INFINITY, best = 0;
    for (int j = 0; j < n; j++)
        most = fabsf(wanted[j]) > fabsf(most) ? wanted[j] : most;
    for (int t = 0; t < 2 * TRIALS && most != 0; t++) {
        float end = (float)(t < TRIALS ? high : low);
        float step = most / (end * (1 - 0.5f * (float)(t % TRIALS) / TRIALS));
        if (end == 0)
            break;
        lanes error = {0};
        for (int j = 0; j < n; j += LANES) {
            lanes v = load_lanes(wanted + j);
            lanes off = v - step * nearest_whole(v * qn__inverse(step), (float)low, (float)high);
            error += load_lanes(stiff + j) * (off * off);
        }
        if (sum_lanes(error) < least_error) {
            least_error = sum_lanes(error);
            best = step;
        }
    }
    return best;
}

float qn__search_error(const qn__grid *g, const float *x, const float *w, int n, float scale,
                       float min, qn__fit *fit)
{
    float inverse = qn__inverse(scale), shift = min * inverse;
    lanes wl = {0}, wll = {0}, wxl = {0}, error = {0};
    for (int j = 0; j < n; j += LANES) {
        lanes value = load_lanes(x + j), l = nearest_code(g, value * inverse + shift);
        lanes off = value - (scale * l - min), weighted = load_lanes(w + j) * l;
        error += load_lanes(w + j) * (off * off);
        wl += weighted;
        wll += weighted * l;
        wxl += weighted * value;
    }
    *fit = (qn__fit){sum_lanes(wl), sum_lanes(wll), sum_lanes(wxl)};
    return sum_lanes(error);
}

void qn__search_codes(const qn__grid *g, const float *x, int n, float scale, float min,
                      uint8_t *codes)
{
    float inverse = qn__inverse(scale), shift = min * inverse;
    for (int j = 0; j < n; j++) {
        float v = x[j] * inverse + shift;
        if (!g->curve) {
            codes[j] = (uint8_t)(qn__round(qn__clamp(v, (float)g->low, (float)g->high)) - g->low);
            continue;
        }
        codes[j] = 0;
        for (int k = 1; k < 16; k++)
            codes[j] += v > (float)(qn__iq4_values[k - 1] + qn__iq4_values[k]) / 2;
    }
}
