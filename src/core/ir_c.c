/* SPDX-License-Identifier: Apache-2.0
 *
 * Rendering programs as C and as CUDA C: one line an instruction, `const f32 v7 = v3 * v5;`.
 *
 * The text must give the bits that the CPU's interpreter gives (cpu/interpret.inl is the definition
 * of each instruction), so integers wrap through unsigned arithmetic, conversions go through f64 or
 * i64 as there, constants are written as bit patterns, and everything that C leaves open sits in a
 * helper of the prelude. Functions like exp come from the C library or from CUDA's: their last bits
 * may differ.
 */
#include "core/ir.h"

#include "core/dtype.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- the prelude ----------------------------------------------------------------------------- */

#define C_TYPES                                                                                    \
    "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"                                \
    "#define FN static inline\n"                                                                   \
    "typedef uint8_t u8;\ntypedef uint16_t u16;\ntypedef uint32_t u32;\ntypedef uint64_t u64;\n"   \
    "typedef int8_t i8;\ntypedef int16_t i16;\ntypedef int32_t i32;\ntypedef int64_t i64;\n"       \
    "typedef float f32;\ntypedef double f64;\n"                                                    \
    "FN f32 f32_of_bits(u32 u) { f32 f; memcpy(&f, &u, 4); return f; }\n"                          \
    "FN u32 bits_of_f32(f32 f) { u32 u; memcpy(&u, &f, 4); return u; }\n"                          \
    "FN f64 f64_of_bits(u64 u) { f64 f; memcpy(&f, &u, 8); return f; }\n"

#define CUDA_TYPES                                                                                 \
    "#define FN static __device__ __forceinline__\n"                                               \
    "typedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\n"          \
    "typedef unsigned long long u64;\ntypedef signed char i8;\ntypedef short i16;\n"               \
    "typedef int i32;\ntypedef long long i64;\ntypedef float f32;\ntypedef double f64;\n"          \
    "FN f32 f32_of_bits(u32 u) { return __uint_as_float(u); }\n"                                   \
    "FN u32 bits_of_f32(f32 f) { return __float_as_uint(f); }\n"                                   \
    "FN f64 f64_of_bits(u64 u) { return __longlong_as_double((i64)u); }\n"

/* Integer instructions that C leaves open in places (core/ir.h says what they give). */
#define WHOLE_HELPERS                                                                              \
    "FN u64 div_u64(u64 a, u64 b) { return b ? a / b : 0; }\n"                                     \
    "FN u64 rem_u64(u64 a, u64 b) { return b ? a % b : 0; }\n"                                     \
    "FN i64 div_i64(i64 a, i64 b)\n"                                                               \
    "{\n"                                                                                          \
    "    return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b;\n"                               \
    "}\n"                                                                                          \
    "FN i64 rem_i64(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }\n"                     \
    "FN u64 pow_u64(u64 a, u64 b)\n"                                                               \
    "{\n"                                                                                          \
    "    u64 y = 1;\n"                                                                             \
    "    for (; b; b >>= 1, a *= a)\n"                                                             \
    "        if (b & 1)\n"                                                                         \
    "            y *= a;\n"                                                                        \
    "    return y;\n"                                                                              \
    "}\n"                                                                                          \
    "FN i64 pow_i64(i64 a, i64 b)\n"                                                               \
    "{\n"                                                                                          \
    "    if (b < 0)\n"                                                                             \
    "        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;\n"                                \
    "    return (i64)pow_u64((u64)a, (u64)b);\n"                                                   \
    "}\n"                                                                                          \
    "FN u64 shl_u64(u64 a, u64 b, u32 bits) { return b >= bits ? 0 : a << b; }\n"                  \
    "FN u64 shr_u64(u64 a, u64 b, u32 bits) { return b >= bits ? 0 : a >> b; }\n"                  \
    "FN i64 shl_i64(i64 a, i64 b, u32 bits) { return (i64)shl_u64((u64)a, (u64)b, bits); }\n"      \
    "FN i64 shr_i64(i64 a, i64 b, u32 bits)\n"                                                     \
    "{\n"                                                                                          \
    "    return (u64)b >= bits ? (a < 0 ? -1 : 0) : a >> b;\n"                                     \
    "}\n"

#define HELPERS                                                                                    \
    "FN f32 f32_of_bf16(u16 h) { return f32_of_bits((u32)h << 16); }\n"                            \
    "FN u16 bf16_of_f32(f32 f)\n"                                                                  \
    "{\n"                                                                                          \
    "    u32 u = bits_of_f32(f);\n"                                                                \
    "    if ((u & 0x7fffffffu) > 0x7f800000u)\n"                                                   \
    "        return (u16)(u >> 16 | 0x40);\n"                                                      \
    "    return (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);\n"                                      \
    "}\n"                                                                                          \
    "FN f32 f32_of_f16(u16 h)\n"                                                                   \
    "{\n"                                                                                          \
    "    u32 sign = (u32)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;\n"                   \
    "    if (e == 31)\n"                                                                           \
    "        return f32_of_bits(sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0));\n"            \
    "    if (e == 0) { /* m 2^-24 */\n"                                                            \
    "        f32 f = (f32)m * f32_of_bits(0x33800000u);\n"                                         \
    "        return sign ? -f : f;\n"                                                              \
    "    }\n"                                                                                      \
    "    return f32_of_bits(sign | (e + 112) << 23 | m << 13);\n"                                  \
    "}\n"                                                                                          \
    "FN u16 f16_of_f32(f32 f)\n"                                                                   \
    "{\n"                                                                                          \
    "    u32 u = bits_of_f32(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;\n"                  \
    "    if (a > 0x7f800000u)\n"                                                                   \
    "        return (u16)(sign | 0x7e00 | (a >> 13 & 0x3ff));\n"                                   \
    "    if (a >= 0x477ff000u) /* 65520 and up */\n"                                               \
    "        return (u16)(sign | 0x7c00);\n"                                                       \
    "    if (a < 0x38800000u) /* adding 0.5 rounds to a multiple of 2^-24 */\n"                    \
    "        return (u16)(sign | (bits_of_f32(f32_of_bits(a) + 0.5f) - 0x3f000000u));\n"           \
    "    return (u16)(sign | ((a + 0xfff + (a >> 13 & 1)) - 0x38000000u) >> 13);\n"                \
    "}\n"                                                                                          \
    "FN i64 i64_of_f64(f64 v) /* saturates; NaN gives 0 */\n"                                      \
    "{\n"                                                                                          \
    "    if (v != v)\n"                                                                            \
    "        return 0;\n"                                                                          \
    "    if (v >= 9223372036854775808.0)\n"                                                        \
    "        return (i64)0x7fffffffffffffffull;\n"                                                 \
    "    return v <= -9223372036854775808.0 ? (i64)0x8000000000000000ull : (i64)v;\n"              \
    "}\n"                                                                                          \
    "FN u64 u64_of_f64(f64 v)\n"                                                                   \
    "{\n"                                                                                          \
    "    if (v < 9223372036854775808.0 || v != v)\n"                                               \
    "        return (u64)i64_of_f64(v);\n"                                                         \
    "    if (v >= 18446744073709551616.0)\n"                                                       \
    "        return 0xffffffffffffffffull;\n"                                                      \
    "    return (u64)(v - 9223372036854775808.0) + 0x8000000000000000ull;\n"                       \
    "}\n"                                                                                          \
    "FN f32 sigmoid_f32(f32 x)\n"                                                                  \
    "{\n"                                                                                          \
    "    f32 e = expf(-fabsf(x));\n"                                                               \
    "    return (x < 0 ? e : 1.0f) / (1.0f + e);\n"                                                \
    "}\n"                                                                                          \
    "FN f64 sigmoid_f64(f64 x)\n"                                                                  \
    "{\n"                                                                                          \
    "    f64 e = exp(-fabs(x));\n"                                                                 \
    "    return (x < 0 ? e : 1.0) / (1.0 + e);\n"                                                  \
    "}\n"

const char *qn__ir_prelude_c(bool cuda)
{
    return cuda ? CUDA_TYPES HELPERS WHOLE_HELPERS : C_TYPES HELPERS WHOLE_HELPERS;
}

const char *qn__ir_type_c(qn_dtype dtype)
{
    static const char *const names[] = {"u8",  "u8",  "u16", "u32", "u64", "i8", "i16",
                                        "i32", "i64", "u16", "u16", "f32", "f64"};
    return names[dtype];
}

/* ---- text ------------------------------------------------------------------------------------ */

typedef struct page {
    char *text;
    size_t room, length; /* length: what was needed, past room too */
} page;

static void put(page *p, const char *format, ...) QN_PRINTF(2, 3);

static void put(page *p, const char *format, ...)
{
    size_t left = p->length < p->room ? p->room - p->length : 0;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(left ? p->text + p->length : NULL, left, format, args);
    va_end(args);
    if (n > 0)
        p->length += (size_t)n;
}

/* The unsigned type in which arithmetic of an integer type wraps; floats are their own. */
static const char *wide_type(qn_dtype t)
{
    if (qn__is_float(t))
        return qn__ir_type_c(t);
    return qn__dtype_size(t) == 8 ? "u64" : "u32";
}

/* ---- instructions ---------------------------------------------------------------------------- */

/* Bit patterns: exact, and the same in every locale. */
static void put_constant(page *p, const qn__ir_instruction *c)
{
    qn_dtype t = (qn_dtype)c->dtype;
    uint64_t bits = qn__ir_bits(c);
    if (t == QN_F32 || t == QN_F64)
        put(p, "%s_of_bits(0x%" PRIx64 "ull)", qn__ir_type_c(t), bits);
    else
        put(p, "(%s)0x%" PRIx64 "ull", qn__ir_type_c(t), bits);
}

/* The k-th number, from its bits. */
static void put_number(page *p, const qn__ir_instruction *c, int k)
{
    qn_dtype t = (qn_dtype)c->dtype;
    if (t == QN_F32 || t == QN_F64)
        put(p, "%s_of_bits((%s)numbers[%d])", qn__ir_type_c(t), t == QN_F32 ? "u32" : "u64", k);
    else
        put(p, "(%s)numbers[%d]", qn__ir_type_c(t), k);
}

/* As the interpreter converts: 64-bit integers become floats through f64, floats become integers
 * through i64. */
static void put_cast(page *p, qn_dtype from, qn_dtype to, int a)
{
    char value[32];
    const char *widen = from == QN_F16 ? "f32_of_f16" : from == QN_BF16 ? "f32_of_bf16" : "";
    const char *through = qn__dtype_size(from) == 8 && !qn__is_float(from) ? "(f64)" : "";
    snprintf(value, sizeof value, "%s(v%d)", widen, a);
    if (to == QN_BOOL)
        put(p, "%s != 0", value);
    else if (to == QN_F16 || to == QN_BF16)
        put(p, "%s((f32)%s%s)", to == QN_F16 ? "f16_of_f32" : "bf16_of_f32", through, value);
    else if (qn__is_float(to))
        put(p, "(%s)%s%s", qn__ir_type_c(to), through, value);
    else if (qn__is_float(from))
        put(p, "(%s)%s_of_f64(%s)", qn__ir_type_c(to), to == QN_U64 ? "u64" : "i64", value);
    else
        put(p, "(%s)%s", qn__ir_type_c(to), value);
}

/* Functions of the C library, by their f64 name; NULL for other instructions. */
static const char *function_of(uint8_t op)
{
    switch (op) {
    case QN__IR_FLOOR: return "floor";
    case QN__IR_CEIL: return "ceil";
    case QN__IR_ROUND: return "rint";
    case QN__IR_SQRT: return "sqrt";
    case QN__IR_EXP: return "exp";
    case QN__IR_LOG: return "log";
    case QN__IR_SIN: return "sin";
    case QN__IR_COS: return "cos";
    case QN__IR_TANH: return "tanh";
    case QN__IR_ERF: return "erf";
    case QN__IR_LOG1P: return "log1p";
    case QN__IR_EXPM1: return "expm1";
    case QN__IR_LOG2: return "log2";
    case QN__IR_EXP2: return "exp2";
    case QN__IR_LOG10: return "log10";
    case QN__IR_TAN: return "tan";
    case QN__IR_ASIN: return "asin";
    case QN__IR_ACOS: return "acos";
    case QN__IR_ATAN: return "atan";
    case QN__IR_SINH: return "sinh";
    case QN__IR_COSH: return "cosh";
    case QN__IR_REM: return "fmod";
    case QN__IR_POW: return "pow";
    case QN__IR_ATAN2: return "atan2";
    case QN__IR_FMA: return "fma";
    default: return NULL;
    }
}

/* Operators between two operands; NULL for other instructions. */
static const char *operator_of(uint8_t op)
{
    switch (op) {
    case QN__IR_ADD: return "+";
    case QN__IR_SUB: return "-";
    case QN__IR_MUL: return "*";
    case QN__IR_DIV: return "/";
    case QN__IR_EQ: return "==";
    case QN__IR_NE: return "!=";
    case QN__IR_LT: return "<";
    case QN__IR_LE: return "<=";
    case QN__IR_AND: return "&";
    case QN__IR_OR: return "|";
    case QN__IR_XOR: return "^";
    default: return NULL;
    }
}

static void put_function(page *p, const char *name, const qn__ir_instruction *c)
{
    put(p, "%s%s(v%d", name, c->dtype == QN_F32 ? "f" : "", c->a);
    int n = qn__ir_operands((qn__ir_op)c->op);
    if (n > 1)
        put(p, ", v%d", c->b);
    if (n > 2)
        put(p, ", v%d", c->c);
    put(p, ")");
}

/* An instruction on one operand that is neither a function nor a cast. */
static void put_unary(page *p, const qn__ir_instruction *c, const char *type, const char *wide)
{
    int a = c->a;
    switch (c->op) {
    case QN__IR_NEG: put(p, "(%s)(-(%s)v%d)", type, wide, a); break;
    case QN__IR_ABS: put(p, "v%d <= 0 ? (%s)(0 - (%s)v%d) : v%d", a, type, wide, a, a); break;
    case QN__IR_SIGN:
        put(p, "v%d != v%d ? v%d : (%s)((v%d > 0) - !(v%d >= 0))", a, a, a, type, a, a);
        break;
    case QN__IR_RSQRT:
        put(p, c->dtype == QN_F32 ? "1.0f / sqrtf(v%d)" : "1.0 / sqrt(v%d)", a);
        break;
    case QN__IR_SIGMOID: put(p, "sigmoid_%s(v%d)", type, a); break;
    default: put(p, c->dtype == QN_BOOL ? "(%s)!v%d" : "(%s)~v%d", type, a); break; /* NOT */
    }
}

/* Integers: through a helper of 64 bits, cut to the type. NULL: not one of these. */
static const char *whole_helper_of(uint8_t op)
{
    switch (op) {
    case QN__IR_DIV: return "div";
    case QN__IR_REM: return "rem";
    case QN__IR_POW: return "pow";
    case QN__IR_SHL: return "shl";
    case QN__IR_SHR: return "shr";
    default: return NULL;
    }
}

static void put_whole(page *p, const char *helper, const qn__ir_instruction *c, const char *type)
{
    bool is_signed = qn__dtype_kind((qn_dtype)c->dtype) == QN__SIGNED;
    put(p, "(%s)%s_%s64(v%d, v%d", type, helper, is_signed ? "i" : "u", c->a, c->b);
    if (c->op == QN__IR_SHL || c->op == QN__IR_SHR)
        put(p, ", %d", 8 * (int)qn__dtype_size((qn_dtype)c->dtype));
    put(p, ")");
}

static void put_value(page *p, const qn__ir *ir, const qn__ir_instruction *c)
{
    qn_dtype t = (qn_dtype)c->dtype;
    const char *type = qn__ir_type_c(t), *wide = wide_type(t);
    const char *function = function_of(c->op), *sign = operator_of(c->op);
    const char *helper = qn__is_float(t) ? NULL : whole_helper_of(c->op);
    if (helper)
        put_whole(p, helper, c, type);
    else if (function)
        put_function(p, function, c);
    else if (sign && c->op >= QN__IR_EQ && c->op <= QN__IR_LE)
        put(p, "v%d %s v%d", c->a, sign, c->b);
    else if (sign)
        put(p, "(%s)((%s)v%d %s (%s)v%d)", type, wide, c->a, sign, wide, c->b);
    else if (c->op == QN__IR_INPUT)
        put(p, "in%d", c->a);
    else if (c->op == QN__IR_CONST)
        put_constant(p, c);
    else if (c->op == QN__IR_CAST)
        put_cast(p, qn__ir_dtype(ir, c->a), t, c->a);
    else if (c->op == QN__IR_SELECT)
        put(p, "v%d ? v%d : v%d", c->a, c->b, c->c);
    else if (c->op == QN__IR_MAX || c->op == QN__IR_MIN)
        put(p, "v%d %c v%d || v%d != v%d ? v%d : v%d", c->a, c->op == QN__IR_MAX ? '>' : '<', c->b,
            c->a, c->a, c->a, c->b);
    else
        put_unary(p, c, type, wide);
}

static void put_signature(page *p, const qn__ir *ir, const char *name)
{
    const char *types[QN__IR_INPUTS];
    for (int i = 0; i < ir->n_inputs; i++)
        types[i] = "u8"; /* of a number that the program does not read */
    for (int i = 0; i < ir->n; i++)
        if (ir->code[i].op == QN__IR_INPUT)
            types[ir->code[i].a] = qn__ir_type_c((qn_dtype)ir->code[i].dtype);
    put(p, "FN %s %s(", qn__ir_type_c(qn__ir_dtype(ir, ir->result)), name);
    for (int i = 0; i < ir->n_inputs; i++)
        put(p, "%s%s in%d", i ? ", " : "", types[i], i);
    if (ir->n_numbers)
        put(p, "%sconst u64 *numbers", ir->n_inputs ? ", " : "");
    put(p, "%s)\n{\n", ir->n_inputs || ir->n_numbers ? "" : "void");
}

size_t qn__ir_render_c(const qn__ir *ir, const char *name, char *text, size_t room)
{
    page p = {text, room, 0};
    put_signature(&p, ir, name);
    int n_numbers = 0;
    for (int i = 0; i < ir->n; i++) {
        const qn__ir_instruction *c = &ir->code[i];
        put(&p, "    const %s v%d = ", qn__ir_type_c((qn_dtype)c->dtype), i);
        if (c->op == QN__IR_NUMBER)
            put_number(&p, c, n_numbers++);
        else
            put_value(&p, ir, c);
        put(&p, ";\n");
    }
    put(&p, "    return v%d;\n}\n", ir->result);
    return p.length;
}
