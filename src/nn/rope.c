/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary frequencies. Llama 3's scaling: waves shorter than a bound stay, longer ones are stretched
 * by the factor, those between are interpolated. YaRN (arXiv:2309.00071): pairs that turn often
 * over the original positions stay, those that hardly turn are stretched, and between a ramp over
 * the pairs' numbers mixes both.
 *
 * Scalings whose frequencies depend on how long the sequence has become (dynamic, longrope) are not
 * here: keys in the cache would have been turned by other ones, so that results hung on how a
 * prompt was cut.
 */
#include "nn/rope.h"

#include <math.h>

static float llama3_scaled(const qn__rope_config *c, float f)
{
    float wavelength = (float)(2 * M_PI) / f;
    if (wavelength > c->original_positions / c->low)
        return f / (float)c->factor;
    if (wavelength < c->original_positions / c->high)
        return f;
    float smooth =
        ((float)c->original_positions / wavelength - (float)c->low) / (float)(c->high - c->low);
    return (1 - smooth) * (f / (float)c->factor) + smooth * f;
}

double qn__rope_yarn_attention(double factor, double mscale, double mscale_all)
{
    if (factor <= 1)
        return 1;
    bool both = mscale != 0 && mscale_all != 0;
    double part = 0.1 * log(factor);
    return both ? (part * mscale + 1) / (part * mscale_all + 1) : part + 1;
}

/* The pair, as a fraction, that turns so many times over the original positions; of a head of d
 * elements. */
static double pair_that_turns(const qn__rope_config *c, double turns, int d)
{
    return d * log(c->original_positions / (turns * 2 * M_PI)) / (2 * log(c->theta));
}

/* Between which pairs the ramp runs. */
static void yarn_ramp(const qn__rope_config *c, int d, double *low, double *high)
{
    *low = pair_that_turns(c, c->fast, d);
    *high = pair_that_turns(c, c->slow, d);
    if (!c->fractional) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = *low > 0 ? *low : 0;
    *high = *high < d - 1 ? *high : d - 1;
    if (*low == *high)
        *high += 0.001;
}

static float yarn_scaled(const qn__rope_config *c, int i, float wave, double low, double high)
{
    float ramp = ((float)i - (float)low) / (float)(high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    float stays = 1 - ramp;
    return 1.0f / ((float)c->factor * wave) * (1 - stays) + 1.0f / wave * stays;
}

void qn__rope_frequencies(const qn__rope_config *c, int n, float *frequency)
{
    double low = 0, high = 0;
    if (c->kind == QN__ROPE_YARN)
        yarn_ramp(c, 2 * n, &low, &high);
    for (int i = 0; i < n; i++) {
        float exponent = (float)(2 * i) / (float)(2 * n), wave = powf((float)c->theta, exponent);
        float f = 1.0f / wave;
        if (c->kind == QN__ROPE_LINEAR)
            f /= (float)c->factor;
        else if (c->kind == QN__ROPE_LLAMA3)
            f = llama3_scaled(c, f);
        else if (c->kind == QN__ROPE_YARN)
            f = yarn_scaled(c, i, wave, low, high);
        frequency[i] = f;
    }
}
