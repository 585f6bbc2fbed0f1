/* SPDX-License-Identifier: Apache-2.0
 *
 * What only floats have, for float or double: T, the function FLOATS, and EXACT, which makes the
 * name of a function of C out of the one for double. Functions without a kernel in the table go
 * through C's double ones.
 */
static void FLOATS(const qn__tape_instruction *t, const frame *f, char *to)
{
    const T *a = (const T *)f->reg[t->a], *b = (const T *)f->reg[t->b],
            *c = (const T *)f->reg[t->c];
    T *y = (T *)to;
    size_t n = f->n;
    switch (t->code.op) {
    case QN__IR_DIV:
        for (size_t i = 0; i < n; i++)
            y[i] = a[i] / b[i];
        break;
    case QN__IR_REM:
        for (size_t i = 0; i < n; i++)
            y[i] = EXACT(fmod)(a[i], b[i]);
        break;
    case QN__IR_FLOOR:
        for (size_t i = 0; i < n; i++)
            y[i] = EXACT(floor)(a[i]);
        break;
    case QN__IR_CEIL:
        for (size_t i = 0; i < n; i++)
            y[i] = EXACT(ceil)(a[i]);
        break;
    case QN__IR_ROUND:
        for (size_t i = 0; i < n; i++)
            y[i] = EXACT(rint)(a[i]);
        break;
    case QN__IR_FMA:
        for (size_t i = 0; i < n; i++)
            y[i] = EXACT(fma)(a[i], b[i], c[i]);
        break;
    case QN__IR_LOG1P:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)log1p((double)a[i]);
        break;
    case QN__IR_EXPM1:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)expm1((double)a[i]);
        break;
    case QN__IR_LOG2:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)log2((double)a[i]);
        break;
    case QN__IR_EXP2:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)exp2((double)a[i]);
        break;
    case QN__IR_LOG10:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)log10((double)a[i]);
        break;
    case QN__IR_TAN:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)tan((double)a[i]);
        break;
    case QN__IR_ASIN:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)asin((double)a[i]);
        break;
    case QN__IR_ACOS:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)acos((double)a[i]);
        break;
    case QN__IR_ATAN:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)atan((double)a[i]);
        break;
    case QN__IR_SINH:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)sinh((double)a[i]);
        break;
    case QN__IR_COSH:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)cosh((double)a[i]);
        break;
    case QN__IR_ATAN2:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)atan2((double)a[i], (double)b[i]);
        break;
    default: break;
    }
}

#undef FLOATS
#undef T
#undef EXACT
