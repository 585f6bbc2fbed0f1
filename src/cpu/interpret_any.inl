/* SPDX-License-Identifier: Apache-2.0
 *
 * What every type has, for one type of C: T, its WIDE type (unsigned, it wraps), IS_NAN, the
 * function ARITHMETIC.
 */
static void ARITHMETIC(const qn__tape_instruction *t, const frame *f, char *to)
{
    const T *a = (const T *)f->reg[t->a], *b = (const T *)f->reg[t->b];
    T *y = (T *)to;
    uint8_t *flag = (uint8_t *)to;
    size_t n = f->n;
    switch (t->code.op) {
    case QN__IR_NEG:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)(-(WIDE)a[i]);
        break;
    case QN__IR_ABS:
        for (size_t i = 0; i < n; i++)
            y[i] = a[i] <= 0 ? (T)(0 - (WIDE)a[i]) : a[i];
        break;
    case QN__IR_SIGN:
        for (size_t i = 0; i < n; i++)
            y[i] = IS_NAN(a[i]) ? a[i] : (T)((a[i] > 0) - !(a[i] >= 0));
        break;
    case QN__IR_ADD:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)((WIDE)a[i] + (WIDE)b[i]);
        break;
    case QN__IR_SUB:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)((WIDE)a[i] - (WIDE)b[i]);
        break;
    case QN__IR_MUL:
        for (size_t i = 0; i < n; i++)
            y[i] = (T)((WIDE)a[i] * (WIDE)b[i]);
        break;
    case QN__IR_MAX:
        for (size_t i = 0; i < n; i++)
            y[i] = a[i] > b[i] || IS_NAN(a[i]) ? a[i] : b[i];
        break;
    case QN__IR_MIN:
        for (size_t i = 0; i < n; i++)
            y[i] = a[i] < b[i] || IS_NAN(a[i]) ? a[i] : b[i];
        break;
    case QN__IR_EQ:
        for (size_t i = 0; i < n; i++)
            flag[i] = a[i] == b[i];
        break;
    case QN__IR_NE:
        for (size_t i = 0; i < n; i++)
            flag[i] = a[i] != b[i];
        break;
    case QN__IR_LT:
        for (size_t i = 0; i < n; i++)
            flag[i] = a[i] < b[i];
        break;
    case QN__IR_LE:
        for (size_t i = 0; i < n; i++)
            flag[i] = a[i] <= b[i];
        break;
    default: break;
    }
}

#undef ARITHMETIC
#undef T
#undef WIDE
#undef IS_NAN
