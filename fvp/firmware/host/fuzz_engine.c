/* A small coverage-guided fuzzer for builds with gcc, which has -fsanitize-coverage=trace-pc but no libFuzzer:
 *
 *     fuzz SECONDS SEED CURRENT FOUND INPUT...
 *
 * mutates the inputs and keeps what reaches new edges. Before each execution the bytes are in the file CURRENT, so that
 * they survive an abort. Kept inputs go to the folder FOUND unless it is "-". Mutations know FlatBuffers: words are
 * aligned, offsets are relative to their own place, most numbers are small indices. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define UNTRACED __attribute__((no_sanitize_coverage, no_sanitize_address, no_sanitize_undefined))

enum { EDGES = 1 << 16, LARGEST = 1 << 16, MOST_INPUTS = 1 << 15, SLOW_SECONDS = 10 };

typedef struct input {
  uint8_t *data;
  uint32_t size;
} input;

static uint8_t hits[EDGES], seen[EDGES];
static uint32_t touched[EDGES], touched_count, previous;
static input inputs[MOST_INPUTS];
static uint32_t input_count;
static uint64_t random_state;
static sigjmp_buf slow;

void __sanitizer_cov_trace_pc(void);

UNTRACED void __sanitizer_cov_trace_pc(void) {
  uintptr_t pc = (uintptr_t)__builtin_return_address(0);
  uint32_t place = (uint32_t)(pc ^ pc >> 16) & (EDGES - 1), edge = place ^ previous;
  previous = place >> 1;
  if (hits[edge] == 0) touched[touched_count++] = edge;
  if (hits[edge] < 255) hits[edge]++;
}

/* Whether the last execution reached an edge, or a power of two of executions of it, for the first time. */
UNTRACED static int is_new(void) {
  int found = 0;
  for (uint32_t i = 0; i < touched_count; i++) {
    uint32_t edge = touched[i], bucket = 1u << (31 - __builtin_clz(hits[edge]));
    if (!(seen[edge] & bucket)) found = 1;
    seen[edge] |= (uint8_t)bucket;
    hits[edge] = 0;
  }
  touched_count = 0;
  previous = 0;
  return found;
}

UNTRACED static uint32_t below(uint32_t limit) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return limit ? (uint32_t)((random_state >> 32) * limit >> 32) : 0;
}

UNTRACED static uint32_t load(const uint8_t *at) {
  uint32_t word;
  memcpy(&word, at, 4);
  return word;
}

UNTRACED static void store(uint8_t *at, uint32_t word) { memcpy(at, &word, 4); }

UNTRACED static uint32_t mutate_once(uint8_t *data, uint32_t size) {
  static const uint32_t interesting[] = {0, 1, 2, 3, 4, 15, 16, 17, 127, 128, 255, 256, 65535, 65536, 1u << 20,
                                         0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  uint8_t *word = data + 4 * below(size / 4), *byte = data + below(size);
  const input *other = &inputs[below(input_count)];
  uint32_t count;
  switch (below(16)) {
    case 0: *byte ^= (uint8_t)(1u << below(8)); break;
    case 1: *byte = (uint8_t)below(256); break;
    case 2: *byte = (uint8_t)(*byte + below(9) - 4); break;
    case 3: store(word, interesting[below(sizeof interesting / sizeof *interesting)]); break;
    case 4: store(word, load(word) + below(33) - 16); break;
    case 5: store(word, load(word) + 4 * (below(65) - 32)); break;
    case 6: store(word, (uint32_t)(data + 4 * below(size / 4) - word)); break; /* another target */
    case 7: /* another index */
      for (uint32_t tries = 0; tries < 64 && load(word) > 255; tries++) word = data + 4 * below(size / 4);
      store(word, below(64));
      break;
    case 8: store(word, load(data + 4 * below(size / 4))); break;
    case 9: { /* swap words */
      uint8_t *second = data + 4 * below(size / 4);
      uint32_t kept = load(word);
      store(word, load(second));
      store(second, kept);
      break;
    }
    case 10: /* copy a part */
      count = 4 * (1 + below(16));
      if (count <= size) memmove(data + 4 * below((size - count) / 4 + 1), data + 4 * below((size - count) / 4 + 1), count);
      break;
    case 11: /* copy a part of another input */
      count = 4 * (1 + below(32));
      if (count <= size && count <= other->size)
        memcpy(data + 4 * below((size - count) / 4 + 1), other->data + 4 * below((other->size - count) / 4 + 1), count);
      break;
    case 12: /* a size or count */
      for (uint32_t tries = 0; tries < 64 && load(word) > 255; tries++) word = data + 4 * below(size / 4);
      store(word, load(word) * 2 + below(3));
      break;
    case 13: *word = (uint8_t)below(16); break; /* a type: of a union, an element, or the dynamism */
    case 14: data[below(size)] = (uint8_t)below(4); break;
    default:
      if (below(8) == 0) return size > 64 ? size - below(size / 4) : size;
      store(word, load(word) ^ 1u << below(32));
  }
  return size;
}

UNTRACED static void keep(const uint8_t *data, uint32_t size) {
  if (input_count == MOST_INPUTS) return;
  input *in = &inputs[input_count++];
  in->data = malloc(size);
  in->size = size;
  memcpy(in->data, data, size);
}

UNTRACED static void read_input(const char *path, uint8_t *buffer) {
  int file = open(path, O_RDONLY);
  ssize_t size = file < 0 ? 0 : read(file, buffer, LARGEST);
  if (file >= 0) close(file);
  if (size >= 64) keep(buffer, (uint32_t)size);
}

static void on_alarm(int signal) {
  (void)signal;
  siglongjmp(slow, 1);
}

UNTRACED static void write_input(const char *folder, const char *seed, const char *why, uint32_t number,
                                 const uint8_t *data, uint32_t size) {
  char path[4096];
  if (!strcmp(folder, "-")) return;
  snprintf(path, sizeof path, "%s/%s-%s-%u", folder, why, seed, number);
  FILE *f = fopen(path, "wb");
  if (!f) return;
  fwrite(data, 1, size, f);
  fclose(f);
}

/* Whether it was stopped. */
UNTRACED static uint32_t execute(const uint8_t *data, uint32_t size) {
  if (sigsetjmp(slow, 1)) return 1;
  alarm(SLOW_SECONDS);
  LLVMFuzzerTestOneInput(data, size);
  alarm(0);
  return 0;
}

UNTRACED int main(int argc, char **argv) {
  if (argc < 6) return 2;
  double seconds = atof(argv[1]);
  random_state = strtoull(argv[2], NULL, 10) * 0x9E3779B97F4A7C15u + 1;
  int file = open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || ftruncate(file, LARGEST + 4)) return 2;
  uint8_t *current = mmap(NULL, LARGEST + 4, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (current == MAP_FAILED) return 2;
  signal(SIGALRM, on_alarm);
  for (int i = 5; i < argc; i++) read_input(argv[i], current + 4);
  uint32_t seeds = input_count, slow_count = 0;
  uint64_t executions = 0;
  time_t end = time(NULL) + (time_t)seconds;
  if (!seeds) return 2;
  while (executions < seeds || time(NULL) < end) {
    uint32_t number = executions < seeds ? (uint32_t)executions
                    : below(2) ? below(input_count) : input_count - 1 - below(input_count > 100 ? 100 : input_count);
    uint32_t size = inputs[number].size;
    memcpy(current + 4, inputs[number].data, size);
    if (executions >= seeds) {
      for (uint32_t i = 1u << below(4); i > 0; i--) size = mutate_once(current + 4, size);
    }
    store(current, size);
    executions++;
    uint32_t was_slow = execute(current + 4, size);
    slow_count += was_slow;
    if (was_slow) write_input(argv[4], argv[2], "slow", slow_count, current + 4, size);
    if (!is_new() || executions <= seeds || was_slow) continue;
    keep(current + 4, size);
    write_input(argv[4], argv[2], "new", input_count, current + 4, size);
  }
  uint32_t edges = 0;
  for (uint32_t i = 0; i < EDGES; i++) edges += seen[i] != 0;
  printf("executions %llu, inputs %u of %u, edges %u, slow %u\n", (unsigned long long)executions, input_count, seeds,
         edges, slow_count);
  return 0;
}
