/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs rendered as C against the CPU's interpreter: random well-typed programs over the exact
 * instructions, all compiled by one run of the system's compiler, compared bit for bit (a NaN
 * equals any other). Functions like exp are compared within a few units in the last place.
 */
#include "test.h"

#include "core/dtype.h"
#include "core/ir.h"
#include "cpu/cpu.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

enum { RANDOM = 200, PROGRAMS = 800, STEPS = 24, INPUTS = 5, N = 600 };

/* ---- random programs ------------------------------------------------------------------------- */

static uint64_t random_bits(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static int below(uint64_t *state, int n)
{
    return (int)(random_bits(state) >> 20 & 0xffffff) % n;
}

/* A value among those so far, cast to `type`. */
static qn__ir_value pick(qn__ir *ir, uint64_t *state, qn__ir_value *values, int n, qn_dtype type)
{
    return qn__ir_cast(ir, values[below(state, n)], type);
}

static qn_dtype random_type(uint64_t *state, bool floats)
{
    static const qn_dtype compute[] = {QN_U8,  QN_U16, QN_U32, QN_U64, QN_I8, QN_I16,
                                       QN_I32, QN_I64, QN_F32, QN_F64, QN_F32};
    return floats ? compute[8 + below(state, 3)] : compute[below(state, 11)];
}

static const double reals[] = {0.0, -0.0, 1.0, -1.5, 0.1, 1e30, -1e-40, INFINITY, 3.0e9};

/* Of a type that the program is made for, or a number that its call brings. */
static qn__ir_value random_constant(qn__ir *ir, uint64_t *state)
{
    if (below(state, 3) == 0)
        return qn__ir_cast(ir, qn__ir_number(ir, below(state, 9)),
                           (qn_dtype)below(state, QN_DTYPE_COUNT));
    if (below(state, 2))
        return qn__ir_integer(ir, random_type(state, false), (int64_t)random_bits(state) >> 40);
    return qn__ir_real(ir, random_type(state, true), reals[below(state, 9)]);
}

static const qn__ir_op any_unary[] = {QN__IR_NEG, QN__IR_ABS, QN__IR_SIGN};
static const qn__ir_op float_unary[] = {QN__IR_FLOOR, QN__IR_CEIL, QN__IR_ROUND, QN__IR_SQRT,
                                        QN__IR_RSQRT};
static const qn__ir_op any_binary[] = {QN__IR_ADD, QN__IR_SUB, QN__IR_MUL, QN__IR_MAX, QN__IR_MIN,
                                       QN__IR_EQ,  QN__IR_NE,  QN__IR_LT,  QN__IR_LE};
static const qn__ir_op float_binary[] = {QN__IR_DIV, QN__IR_REM};
static const qn__ir_op bit_binary[] = {QN__IR_AND, QN__IR_OR, QN__IR_XOR};
static const qn__ir_op whole_binary[] = {QN__IR_DIV, QN__IR_REM, QN__IR_POW, QN__IR_SHL,
                                         QN__IR_SHR};

static qn__ir_value random_step(qn__ir *ir, uint64_t *state, qn__ir_value *values, int n)
{
    qn_dtype any = random_type(state, false), real = random_type(state, true);
    qn_dtype bits = below(state, 2) || qn__is_float(any) ? QN_BOOL : any;
    qn__ir_value a = pick(ir, state, values, n, any), b = pick(ir, state, values, n, any);
    switch (below(state, 9)) {
    case 0: return qn__ir_unary(ir, any_unary[below(state, 3)], a);
    case 1: return qn__ir_unary(ir, float_unary[below(state, 5)], pick(ir, state, values, n, real));
    case 2:
        return qn__ir_binary(ir, float_binary[below(state, 2)], pick(ir, state, values, n, real),
                             pick(ir, state, values, n, real));
    case 3:
        return qn__ir_binary(ir, bit_binary[below(state, 3)], pick(ir, state, values, n, bits),
                             pick(ir, state, values, n, bits));
    case 4: return qn__ir_unary(ir, QN__IR_NOT, pick(ir, state, values, n, bits));
    case 5:
        return qn__ir_ternary(ir, QN__IR_FMA, pick(ir, state, values, n, real),
                              pick(ir, state, values, n, real), pick(ir, state, values, n, real));
    case 6: return qn__ir_ternary(ir, QN__IR_SELECT, pick(ir, state, values, n, QN_BOOL), a, b);
    case 7: return qn__ir_cast(ir, a, (qn_dtype)below(state, QN_DTYPE_COUNT));
    default: return qn__ir_binary(ir, any_binary[below(state, 9)], a, b);
    }
}

static void random_program(qn__ir *ir, uint64_t *state, qn_dtype *types)
{
    qn__ir_value values[INPUTS + STEPS + 2];
    int n = 0;
    qn__ir_begin(ir);
    for (; n < INPUTS; n++) {
        types[n] = (qn_dtype)below(state, QN_DTYPE_COUNT);
        values[n] = qn__ir_input(ir, n, types[n]);
    }
    values[n++] = random_constant(ir, state);
    values[n++] = random_constant(ir, state);
    for (int i = 0; i < STEPS; i++)
        values[INPUTS + 2 + i] = random_step(ir, state, values, INPUTS + 2 + i);
    ir->result = values[INPUTS + 2 + STEPS - 1];
    assert_false(ir->failed);
}

/* Elements of any kind: small numbers, all bit patterns, the ends of each range. */
static void fill(uint64_t *state, qn_dtype type, char *data)
{
    static const int64_t ties[] = {(1ll << 60) + (1ll << 36) + 1, INT64_MIN, -1, 0, 1ll << 53};
    static const double ends[] = {0.0,  -0.0,         INFINITY, -INFINITY,
                                  NAN,  65519.9,      65520.0,  1e-45,
                                  6e-8, 2147483648.0, -9.3e18,  1.8446744073709552e19,
                                  127.5};
    size_t size = qn__dtype_size(type);
    for (int i = 0; i < N; i++) {
        uint64_t bits = random_bits(state);
        int kind = below(state, 3);
        if (type == QN_BOOL)
            data[i] = (char)(bits & 1);
        else if (kind == 0)
            memcpy(data + (size_t)i * size, &bits, size);
        else if (!qn__is_float(type))
            qn__element_from_i64(data + (size_t)i * size, type,
                                 kind == 1 ? ties[below(state, 5)] : (int64_t)bits >> 58);
        else
            qn__element_from_f64(data + (size_t)i * size, type,
                                 kind == 1 ? ends[below(state, 13)]
                                           : (double)((int64_t)bits >> 40) / 65536);
    }
}

/* ---- both ways to run one -------------------------------------------------------------------- */

static void interpret(const qn__cpu_kernels *table, const qn__ir *ir, const qn_dtype *types,
                      char **at)
{
    qn__operand operands[INPUTS + 1] = {0};
    assert_in_range(ir->n_inputs, 0, INPUTS);
    for (int i = 0; i <= ir->n_inputs && i <= INPUTS; i++) {
        operands[i].ndim = 1;
        operands[i].shape[0] = N;
        operands[i].stride[0] = 1;
        operands[i].dtype = (uint8_t)(i < ir->n_inputs ? types[i] : qn__ir_dtype(ir, ir->result));
    }
    qn__call call = {.program = ir,
                     .constants = reals,
                     .operand = operands,
                     .n_operands = (uint32_t)ir->n_inputs + 1};
    qn__cpu_job job = {.call = &call, .table = table};
    size_t bytes = 0;
    qn__cpu_tape *tape = qn__cpu_tape_new(&job, &bytes);
    assert_non_null(tape);
    job.tape = tape;
    void *scratch = malloc(job.scratch);
    assert_non_null(scratch);
    qn__cpu_run_tape_ref(&job, &(qn__cpu_part){.at = at, .end = job.units[0], .scratch = scratch});
    free(scratch);
    free(tape);
}

/* A loop over the rendered function: void loopK(const void *const *in, void *out, int n). */
static void write_program(FILE *f, int k, const qn__ir *ir)
{
    static char text[1 << 16];
    char name[16];
    snprintf(name, sizeof name, "element%d", k);
    size_t n = qn__ir_render_c(ir, name, text, sizeof text);
    assert_true(n > 0 && n < sizeof text);
    assert_int_equal(qn__ir_render_c(ir, name, NULL, 0), n);
    fprintf(f, "%sstatic const u64 numbers%d[] = {", text, k);
    qn__ir_instruction code[QN__IR_LARGEST];
    memcpy(code, ir->code, (size_t)ir->n * sizeof *code);
    qn__ir_fill_numbers(ir, reals, code);
    for (int i = 0; i < ir->n; i++)
        if (code[i].op == QN__IR_NUMBER)
            fprintf(f, "0x%llxull, ", (unsigned long long)qn__ir_bits(&code[i]));
    fprintf(f, "0};\nvoid loop%d(const void *const *in, void *out, int n)\n{\n", k);
    fprintf(f, "    for (int i = 0; i < n; i++)\n        ((%s *)out)[i] = %s(",
            qn__ir_type_c(qn__ir_dtype(ir, ir->result)), name);
    for (int i = 0; i < ir->n_inputs; i++) {
        const char *type = "u8";
        for (int c = 0; c < ir->n; c++)
            if (ir->code[c].op == QN__IR_INPUT && ir->code[c].a == i)
                type = qn__ir_type_c((qn_dtype)ir->code[c].dtype);
        fprintf(f, "%s((const %s *)in[%d])[i]", i ? ", " : "", type, i);
    }
    if (ir->n_numbers)
        fprintf(f, "%snumbers%d", ir->n_inputs ? ", " : "", k);
    fprintf(f, ");\n}\n");
}

/* Compiles DIR/t.c into a library with the compiler that CC names; NULL with the reason printed
 * when there is none. */
static void *compile(const char *dir)
{
    char command[1024];
    const char *cc = getenv("CC") ? getenv("CC") : "cc";
    snprintf(command, sizeof command, "%s --version >/dev/null 2>&1", cc);
    if (system(command) != 0) {
        print_message("skipped: there is no C compiler named %s\n", cc);
        return NULL;
    }
    snprintf(command, sizeof command,
             "%s -std=c11 -O1 -Wall -Werror -Wno-tautological-compare -Wno-unused-function "
             "-Wno-unused-variable "
             "-ffp-contract=off -fPIC -shared -o %s/t.so %s/t.c -lm",
             cc, dir, dir);
    if (system(command) != 0)
        fail_msg("the rendered text does not compile: %s/t.c", dir);
    snprintf(command, sizeof command, "%s/t.so", dir);
    void *library = dlopen(command, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    return library;
}

static void remove_dir(const char *dir)
{
    char path[256];
    snprintf(path, sizeof path, "%s/t.c", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/t.so", dir);
    unlink(path);
    rmdir(dir);
}

typedef void loop_fn(const void *const *in, void *out, int n);

static void run_rendered(void *library, int k, char **at, int n_inputs)
{
    char name[16];
    snprintf(name, sizeof name, "loop%d", k);
    loop_fn *loop;
    *(void **)&loop = dlsym(library, name);
    assert_non_null(loop);
    loop((const void *const *)at, at[n_inputs], N);
}

static bool same_element(qn_dtype type, const char *a, const char *b)
{
    if (qn__is_float(type)) {
        double x = qn__element_to_f64(a, type), y = qn__element_to_f64(b, type);
        if (x != x && y != y)
            return true;
    }
    return !memcmp(a, b, qn__dtype_size(type));
}

/* ---- tests ----------------------------------------------------------------------------------- */

typedef struct set {
    qn__ir ir[PROGRAMS];
    qn_dtype types[PROGRAMS][INPUTS];
    int n;
} set;

/* A program of one instruction on inputs of one type (a SELECT's condition is bool). */
static void add_instruction(set *all, qn__ir_op op, qn_dtype type)
{
    qn__ir *ir = &all->ir[all->n];
    qn_dtype *types = all->types[all->n];
    qn__ir_begin(ir);
    qn__ir_value v[3];
    for (int i = 0; i < 3; i++)
        v[i] = qn__ir_input(ir, i, types[i] = i == 0 && op == QN__IR_SELECT ? QN_BOOL : type);
    switch (qn__ir_operands(op)) {
    case 1: qn__ir_unary(ir, op, v[0]); break;
    case 2: qn__ir_binary(ir, op, v[0], v[1]); break;
    default: qn__ir_ternary(ir, op, v[0], v[1], v[2]); break;
    }
    assert_false(ir->failed);
    all->n++;
}

static void add_all_of(set *all, const qn__ir_op *ops, int n, qn_dtype type)
{
    for (int i = 0; i < n; i++)
        add_instruction(all, ops[i], type);
}

/* Each instruction on each type that it takes, each cast. */
static void add_systematic(set *all)
{
    for (int t = 0; t < QN_DTYPE_COUNT; t++) {
        qn_dtype type = (qn_dtype)t;
        bool real = type == QN_F32 || type == QN_F64, half = type == QN_F16 || type == QN_BF16;
        for (int to = 0; to < QN_DTYPE_COUNT; to++) {
            qn__ir *ir = &all->ir[all->n];
            qn__ir_begin(ir);
            qn__ir_cast(ir, qn__ir_input(ir, 0, all->types[all->n][0] = type), (qn_dtype)to);
            all->n++;
        }
        add_instruction(all, QN__IR_SELECT, type);
        if (!half && type != QN_BOOL) {
            add_all_of(all, any_unary, 3, type);
            add_all_of(all, any_binary, 9, type);
        }
        if (real) {
            add_all_of(all, float_unary, 5, type);
            add_all_of(all, float_binary, 2, type);
            add_instruction(all, QN__IR_FMA, type);
        } else if (!half) {
            add_all_of(all, bit_binary, 3, type);
            if (type != QN_BOOL)
                add_all_of(all, whole_binary, 5, type);
            add_instruction(all, QN__IR_NOT, type);
        }
    }
}

/* Both results of program k on the same random inputs. */
static void compare_program(const qn__cpu_kernels *table, void *library, const set *all, int k,
                            uint64_t *state)
{
    static char data[INPUTS + 2][N * 8];
    const qn__ir *ir = &all->ir[k];
    int n = ir->n_inputs;
    char *at[INPUTS + 1];
    for (int i = 0; i < n; i++)
        fill(state, all->types[k][i], at[i] = data[i]);
    at[n] = data[INPUTS];
    interpret(table, ir, all->types[k], at);
    at[n] = data[INPUTS + 1];
    run_rendered(library, k, at, n);
    qn_dtype type = qn__ir_dtype(ir, ir->result);
    size_t size = qn__dtype_size(type);
    for (int i = 0; i < N; i++) {
        const char *want = data[INPUTS] + (size_t)i * size,
                   *got = data[INPUTS + 1] + (size_t)i * size;
        if (!same_element(type, want, got))
            fail_msg("program %d (%s) differs at element %d: %.17g and %.17g", k,
                     qn_dtype_name(type), i, qn__element_to_f64(want, type),
                     qn__element_to_f64(got, type));
    }
}

static void test_exact(void **unused)
{
    (void)unused;
    static set all;
    uint64_t state = 0x9e3779b97f4a7c15u;
    char dir[] = "/tmp/quern-ir-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/t.c", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(qn__ir_prelude_c(false), f);
    add_systematic(&all);
    for (int i = 0; i < RANDOM; i++, all.n++)
        random_program(&all.ir[all.n], &state, all.types[all.n]);
    assert_true(all.n <= PROGRAMS);
    for (int k = 0; k < all.n; k++)
        write_program(f, k, &all.ir[k]);
    fclose(f);
    void *library = compile(dir);
    qn__cpu_kernels table;
    qn__cpu_kernels_fill(&table, "ref");
    for (int k = 0; library && k < all.n; k++)
        compare_program(&table, library, &all, k, &state);
    if (library)
        dlclose(library);
    remove_dir(dir);
}

static const qn__ir_op functions[] = {
    QN__IR_EXP,  QN__IR_LOG,   QN__IR_SIN,   QN__IR_COS,  QN__IR_TANH, QN__IR_ERF,   QN__IR_SIGMOID,
    QN__IR_POW,  QN__IR_LOG1P, QN__IR_EXPM1, QN__IR_LOG2, QN__IR_EXP2, QN__IR_LOG10, QN__IR_TAN,
    QN__IR_ASIN, QN__IR_ACOS,  QN__IR_ATAN,  QN__IR_SINH, QN__IR_COSH, QN__IR_ATAN2};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

static void test_functions(void **unused)
{
    (void)unused;
    char dir[] = "/tmp/quern-ir-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/t.c", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(qn__ir_prelude_c(false), f);
    static qn__ir programs[N_FUNCTIONS];
    for (int k = 0; k < N_FUNCTIONS; k++) {
        qn__ir_begin(&programs[k]);
        qn__ir_value x = qn__ir_input(&programs[k], 0, QN_F32);
        if (qn__ir_operands(functions[k]) == 2)
            qn__ir_binary(&programs[k], functions[k], qn__ir_unary(&programs[k], QN__IR_ABS, x), x);
        else
            qn__ir_unary(&programs[k], functions[k], x);
        write_program(f, k, &programs[k]);
    }
    fclose(f);
    void *library = compile(dir);
    qn__cpu_kernels table;
    qn__cpu_kernels_fill(&table, "ref");
    static float x[N], want[N], got[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i - N / 2) / 20;
    for (int k = 0; library && k < N_FUNCTIONS; k++) {
        char *at[] = {(char *)x, (char *)want};
        qn_dtype type = QN_F32;
        interpret(&table, &programs[k], &type, at);
        at[1] = (char *)got;
        run_rendered(library, k, at, 1);
        for (int i = 0; i < N; i++)
            if (!(fabsf(got[i] - want[i]) <= 4e-7f * fabsf(want[i]) + 1e-38f) &&
                !(got[i] != got[i] && want[i] != want[i]) && got[i] != want[i])
                fail_msg("function %d of %g: %.9g and %.9g", k, (double)x[i], (double)want[i],
                         (double)got[i]);
    }
    if (library)
        dlclose(library);
    remove_dir(dir);
}

static void test_limits(void **unused)
{
    (void)unused;
    static qn__ir ir;
    qn__ir_begin(&ir);
    qn__ir_value a = qn__ir_input(&ir, 0, QN_BOOL);
    qn__ir_binary(&ir, QN__IR_DIV, a, a);
    assert_true(ir.failed); /* bools are no numbers */
    char text[16];
    qn__ir_begin(&ir);
    qn__ir_real(&ir, QN_F32, 1);
    size_t n = qn__ir_render_c(&ir, "f", text, sizeof text);
    assert_true(n > sizeof text); /* cut, as snprintf cuts */
    assert_string_equal(text, "FN f32 f(void)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests_name("core/ir_c", tests, NULL, NULL);
}
