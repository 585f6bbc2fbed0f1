/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary frequencies. Llama 3's scaling: waves shorter than a bound stay, longer ones are stretched by
 * the factor, those between are interpolated.
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
    float smooth = ((float)c->original_positions / wavelength - (float)c->low) /
                   (float)(c->high - c->low);
    return (1 - smooth) * (f / (float)c->factor) + smooth * f;
}

void qn__rope_frequencies(const qn__rope_config *c, int n, float *frequency)
{
    for (int i = 0; i < n; i++) {
        float exponent = (float)(2 * i) / (float)(2 * n);
        float f = 1.0f / powf((float)c->theta, exponent);
        if (c->kind == QN__ROPE_LINEAR)
            f /= (float)c->factor;
        else if (c->kind == QN__ROPE_LLAMA3)
            f = llama3_scaled(c, f);
        frequency[i] = f;
    }
}
