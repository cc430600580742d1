/* The runner: one method, n times, with inputs and outputs in files of the host.
 *
 *     app [-m ADDRESS,BYTES] [-f METHOD] [-i INPUTS] [-o OUTPUTS] [-n TIMES] [-q REQUESTS -r REPLIES]
 *
 * A file holds the tensors of the first run, then those of the second, and so on: words of 32 bits "ALT1", dtype,
 * rank, sizes, then (in OUTPUTS only) a byte for each dimension with the order in memory, outermost first, then the data
 * as it lies in memory. A number is a tensor of rank 0 (int64, float64 or bool).
 * On the console every line for programs begins with "al "; an error with "arm-lower: error"; "al done" is written
 * only if everything was done. The exit code is the al_status.
 */
#include <string.h>

#include "app.h"
#include "port.h"
#include "semihosting.h"

#define TENSOR_MAGIC 0x31544c41u
#define NO_VALUE 255u /* dtype of None */
#define LINE_MAX 256 /* of an FVP */

typedef struct arguments {
  const char *model, *method, *inputs, *outputs, *requests, *replies;
  uint32_t times;
} arguments;

typedef struct clocks {
  uint64_t instructions, cycles;
} clocks;

static struct {
  al_error error;
  clocks begin, overhead;
  char line[LINE_MAX];
} state;

/* In npu.c, which is there only if it is needed. */
void al_npu_setup(const char *requests, const char *replies) __attribute__((weak));
void al_npu_counts(al_profile *profile) __attribute__((weak)); /* adds those of the last call */

static void put_field(const char *name, uint32_t value) {
  al_put(' ');
  al_puts(name);
  al_put('=');
  al_put_unsigned(value);
}

static int report(al_status status) {
  static char text[256];
  al_error_text(&state.error, text, sizeof text);
  al_puts("arm-lower: error ");
  al_put_unsigned(status);
  al_puts(": ");
  al_puts(text);
  al_put('\n');
  if (state.error.needed || state.error.available) {
    al_puts("al error");
    put_field("needed", state.error.needed);
    put_field("available", state.error.available);
    al_put('\n');
  }
  return (int)status;
}

static al_status fail(al_status status, const char *name, uint32_t argument, uint32_t needed, uint32_t available) {
  state.error = (al_error){.status = status, .instruction = -1, .argument = (int32_t)argument, .name = name,
                           .name_size = (uint32_t)strlen(name), .needed = needed, .available = available};
  return status;
}

static int usage(const char *what, const char *which) {
  al_puts("arm-lower: error ");
  al_put_unsigned(AL_EXIT_USAGE);
  al_puts(": ");
  al_puts(what);
  al_puts(which);
  al_put('\n');
  return AL_EXIT_USAGE;
}

/* Decimal, or hexadecimal after 0x; `text` moves behind it. */
static uint32_t parse_number(const char **text) {
  const char *p = *text;
  uint32_t number = 0, base = 10;
  if (p[0] == '0' && p[1] == 'x') base = 16, p += 2;
  for (;; p++) {
    uint32_t digit = *p <= '9' ? (uint32_t)*p - '0' : ((uint32_t)*p | 32) - 'a' + 10;
    if (digit >= base) break;
    number = number * base + digit;
  }
  *text = p;
  return number;
}

/* Splits the line in place: the program's name, then pairs of an option and its text. */
static int parse(char *line, arguments *a) {
  char *words[2 * sizeof(arguments) / sizeof(char *) + 1];
  uint32_t count = 0;
  for (char *p = line; *p;) {
    while (*p == ' ') *p++ = 0;
    if (!*p) break;
    if (count == sizeof words / sizeof *words) return usage("too many arguments: ", p);
    words[count++] = p;
    while (*p && *p != ' ') p++;
  }
  a->times = 1;
  for (uint32_t i = 1; i < count; i += 2) {
    const char *option = words[i], *text = i + 1 < count ? words[i + 1] : 0;
    if (option[0] != '-' || !option[1] || option[2] || !text) return usage("no option with an argument: ", option);
    switch (option[1]) {
      case 'm': a->model = text; break;
      case 'f': a->method = text; break;
      case 'i': a->inputs = text; break;
      case 'o': a->outputs = text; break;
      case 'q': a->requests = text; break;
      case 'r': a->replies = text; break;
      case 'n': a->times = parse_number(&text); break;
      default: return usage("unknown option: ", option);
    }
  }
  return 0;
}

static void put_shape(const al_value *v) {
  if (v->type != AL_TENSOR) {
    al_puts(" number\n");
    return;
  }
  put_field("dtype", v->t->dtype);
  al_puts(" sizes=");
  for (uint32_t d = 0; d < v->t->rank; d++) {
    if (d) al_put('x');
    al_put_int(v->t->sizes[d]);
  }
  put_field("bytes", al_nbytes(v->t));
  al_put('\n');
}

static void event(void *unused, bool begins, uint32_t instruction, const char *name, uint32_t name_size) {
  (void)unused;
  if (begins) {
    state.begin.cycles = al_cycles();
    state.begin.instructions = al_instructions();
    return;
  }
  uint64_t instructions = al_instructions() - state.begin.instructions - state.overhead.instructions;
  uint64_t cycles = al_cycles() - state.begin.cycles - state.overhead.cycles;
  if (instruction >= al_application.profile_count) return;
  al_profile *p = &al_application.profile[instruction];
  p->instructions += instructions;
  p->cycles += cycles;
  if (al_npu_counts) al_npu_counts(p);
  p->calls++;
  p->name = name;
  p->name_size = name_size;
}

/* What an empty instruction would cost. */
static void calibrate(void) {
  al_profile *p = &al_application.profile[0];
  if (!al_application.profile_count) return;
  event(0, true, 0, 0, 0);
  event(0, false, 0, 0, 0);
  state.overhead = (clocks){p->instructions, p->cycles};
  memset(p, 0, sizeof *p);
}

static void put_profile(void) {
  for (uint32_t i = 0; i < al_application.profile_count; i++) {
    const al_profile *p = &al_application.profile[i];
    if (!p->calls) continue;
    al_puts("al op");
    put_field("index", i);
    put_field("calls", p->calls);
    al_puts(" instructions=");
    al_put_unsigned(p->instructions);
    al_puts(" cycles=");
    al_put_unsigned(p->cycles);
    al_puts(" npu_cycles=");
    al_put_unsigned(p->npu_cycles);
    al_puts(" npu_events=");
    for (uint32_t k = 0; k < AL_NPU_EVENTS; k++) {
      if (k) al_put(',');
      al_put_unsigned(p->npu_events[k]);
    }
    al_puts(" name=");
    al_put_text(p->name, p->name_size);
    al_put('\n');
  }
}

static void put_pool(const char *name, al_block block, uint32_t needed) {
  al_puts("al pool name=");
  al_puts(name);
  put_field("size", block.size);
  put_field("needed", needed);
  al_puts(" address=");
  al_put_hex((uint32_t)(uintptr_t)block.data);
  al_put('\n');
}

/* Reads one tensor straight into the memory of an input, then lets the runtime check what it is. */
static al_status read_input(al_method *method, uint32_t number, int file) {
  uint32_t head[3];
  int32_t sizes[AL_MAX_RANK];
  int64_t scalar = 0;
  const al_value *v = al_input(method, number);
  if (sh_read(file, head, sizeof head) || head[0] != TENSOR_MAGIC || head[2] > AL_MAX_RANK ||
      sh_read(file, sizes, head[2] * sizeof *sizes)) {
    return fail(AL_INPUT_COUNT, "input file", number, 0, 0);
  }
  uint64_t bytes = al_dtype_size((al_dtype)head[1]);
  for (uint32_t d = 0; d < head[2]; d++) bytes = bytes * (uint32_t)sizes[d] & 0xffffffffffffu;
  void *data = v->type == AL_TENSOR ? v->t->data : head[1] == NO_VALUE ? NULL : &scalar;
  uint32_t capacity = v->type == AL_TENSOR ? v->t->capacity : sizeof scalar;
  if (v->type != AL_TENSOR && bytes > capacity) return fail(AL_INPUT_VALUE, "input", number, 0, 0);
  /* what is too large is refused by its shape or type, before its data is looked at */
  if (bytes <= capacity && sh_read(file, data, (uint32_t)bytes))
    return fail(AL_INPUT_COUNT, "input file", number, (uint32_t)bytes, 0);
  return al_set_input(method, number, (al_dtype)head[1], head[2], sizes, data, (size_t)bytes, &state.error);
}

static int write_output(const al_value *v, int file) {
  if (v->type == AL_TENSOR) {
    uint32_t head[3] = {TENSOR_MAGIC, v->t->dtype, v->t->rank};
    return sh_write(file, head, sizeof head) || sh_write(file, v->t->sizes, v->t->rank * sizeof(int32_t)) ||
           sh_write(file, v->t->dim_order, v->t->rank) || sh_write(file, v->t->data, al_nbytes(v->t));
  }
  uint32_t dtype = v->type == AL_INT ? AL_I64 : v->type == AL_DOUBLE ? AL_F64 : AL_BOOL;
  uint32_t head[3] = {TENSOR_MAGIC, dtype, 0};
  return sh_write(file, head, sizeof head) || sh_write(file, &v->i, al_dtype_size((al_dtype)dtype));
}

/* Inputs and outputs without planned memory get some of the application's. */
static al_status bind(al_method *method, bool output, uint32_t count) {
  al_block *io = &al_application.io;
  for (uint32_t i = 0; i < count; i++) {
    const al_value *v = output ? al_output(method, i) : al_input(method, i);
    if (v->type != AL_TENSOR || v->t->data) continue;
    uint32_t bytes = (v->t->capacity ? v->t->capacity : al_nbytes(v->t)) + (AL_ALIGNMENT - 1);
    bytes &= ~(uint32_t)(AL_ALIGNMENT - 1);
    if (bytes > io->size) return fail(AL_ARENA_TOO_SMALL, output ? "output" : "input", i, bytes, io->size);
    al_status status = al_bind(method, output, i, io->data, bytes, &state.error);
    if (status) return status;
    io->data = (uint8_t *)io->data + bytes;
    io->size -= bytes;
  }
  return AL_OK;
}

static al_status run_once(al_method *method, const al_needs *needs, int inputs, int outputs) {
  al_status status = AL_OK;
  if (inputs >= 0) {
    for (uint32_t i = 0; i < needs->input_count && !status; i++) status = read_input(method, i, inputs);
  }
  if (!status) {
    uint64_t cycles = al_cycles(), instructions = al_instructions();
    status = al_execute(method, &state.error);
    instructions = al_instructions() - instructions;
    al_puts("al run instructions=");
    al_put_unsigned(instructions);
    al_puts(" cycles=");
    al_put_unsigned(al_cycles() - cycles);
    al_put('\n');
  }
  if (status || outputs < 0) return status;
  for (uint32_t i = 0; i < needs->output_count; i++) {
    if (write_output(al_output(method, i), outputs)) return fail(AL_HOST_GONE, "output file", i, 0, 0);
  }
  return AL_OK;
}

static int run_all(al_method *method, const al_needs *needs, const arguments *a) {
  int inputs = -1, outputs = -1;
  al_status status = AL_OK;
  uint8_t extra;
  if (a->inputs && (inputs = sh_open(a->inputs, SH_READ)) < 0) return usage("cannot open ", a->inputs);
  if (a->outputs && (outputs = sh_open(a->outputs, SH_WRITE)) < 0) return usage("cannot open ", a->outputs);
  for (uint32_t i = 0; i < a->times && !status; i++) status = run_once(method, needs, inputs, outputs);
  if (!status && inputs >= 0 && !sh_read(inputs, &extra, 1))
    status = fail(AL_INPUT_COUNT, "input file", needs->input_count, 0, 0);
  if (outputs >= 0) sh_close(outputs);
  return status ? report(status) : 0;
}

static void put_interface(const al_method *method, const al_needs *needs) {
  for (uint32_t i = 0; i < needs->input_count + needs->output_count; i++) {
    bool output = i >= needs->input_count;
    uint32_t number = output ? i - needs->input_count : i;
    al_puts(output ? "al output" : "al input");
    put_field("index", number);
    put_shape(output ? al_output(method, number) : al_input(method, number));
  }
}

int main(void) {
  al_app *app = &al_application;
  arguments a = {0};
  if (sh_command_line(state.line, sizeof state.line)) return usage("the command line is too long", "");
  int wrong = parse(state.line, &a);
  if (wrong) return wrong;
  al_puts("al start version=1 board=");
  al_puts(app->board);
  al_put('\n');
  if (a.model) {
    const char *text = a.model;
    app->model = (const void *)(uintptr_t)parse_number(&text);
    if (*text++ != ',') return usage("-m needs ADDRESS,BYTES: ", a.model);
    app->model_bytes = parse_number(&text);
  }
  if (!app->model) return usage("no model in this application: give -m ADDRESS,BYTES", "");

  if (al_npu_setup) al_npu_setup(a.requests, a.replies);
  calibrate();
  app->config.observer.event = event;
  al_program program;
  al_needs needs;
  al_method *method;
  al_status status = al_program_load(&program, app->model, app->model_bytes, &state.error);
  if (!status) status = al_method_needs(&program, a.method, &app->config, &needs, &state.error);
  if (status) return report(status);
  put_pool("values", app->memory.values, needs.values);
  for (uint32_t i = 0; i < AL_MAX_ARENAS; i++) {
    static char name[] = "arena1";
    name[5] = (char)('1' + i);
    if (needs.arenas[i] || app->memory.arenas[i].size) put_pool(name, app->memory.arenas[i], needs.arenas[i]);
  }
  put_pool("scratch", app->memory.scratch, needs.scratch);
  put_pool("fast_scratch", app->memory.fast_scratch, 0);
  status = al_method_init(&method, &program, a.method, &app->memory, &app->config, &state.error);
  if (!status) status = bind(method, false, needs.input_count);
  if (!status) status = bind(method, true, needs.output_count);
  if (status) return report(status);

  int code = run_all(method, &needs, &a);
  if (code) return code;
  put_interface(method, &needs);
  put_profile();
  al_puts("al stack");
  put_field("size", al_stack_size());
  put_field("used", al_stack_used());
  al_puts("\nal done\n");
  return 0;
}
