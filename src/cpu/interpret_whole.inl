/* SPDX-License-Identifier: Apache-2.0
 *
 * What only integers have, for one type of C: T, of BITS bits, SIGNED or not, its WIDE type
 * (unsigned, it wraps), the functions WHOLE and POWER. core/ir.h says what they give where C leaves
 * it open.
 */
static T POWER(T a, T b)
{
    if (SIGNED && b < 0)
        return a == 1 ? 1 : a == (T)-1 ? (T)(b % 2 ? -1 : 1) : 0;
    WIDE y = 1, x = (WIDE)a;
    for (; b; b = (T)(b / 2), x *= x)
        if (b % 2)
            y *= x;
    return (T)y;
}

static void WHOLE(const qn__tape_instruction *t, const frame *f, char *to)
{
    const T *a = (const T *)f->reg[t->a], *b = (const T *)f->reg[t->b];
    T *y = (T *)to;
    size_t n = f->n;
    switch (t->code.op) {
    case QN__IR_DIV:
        for (size_t i = 0; i < n; i++)
            y[i] = b[i] == 0 ? 0 : SIGNED && b[i] == (T)-1 ? (T)(0 - (WIDE)a[i]) : (T)(a[i] / b[i]);
        break;
    case QN__IR_REM:
        for (size_t i = 0; i < n; i++)
            y[i] = b[i] == 0 || (SIGNED && b[i] == (T)-1) ? 0 : (T)(a[i] % b[i]);
        break;
    case QN__IR_POW:
        for (size_t i = 0; i < n; i++)
            y[i] = POWER(a[i], b[i]);
        break;
    case QN__IR_SHL:
        for (size_t i = 0; i < n; i++) {
            T v = (T)((WIDE)a[i] << ((WIDE)b[i] & (BITS - 1)));
            y[i] = (WIDE)b[i] < BITS ? v : 0;
        }
        break;
    case QN__IR_SHR:
        for (size_t i = 0; i < n; i++) {
            T v = (T)(a[i] >> ((WIDE)b[i] & (BITS - 1))), none = (T)(SIGNED && a[i] < 0 ? -1 : 0);
            y[i] = (WIDE)b[i] < BITS ? v : none;
        }
        break;
    default: break;
    }
}

#undef WHOLE
#undef POWER
#undef T
#undef WIDE
#undef BITS
#undef SIGNED
