/* Error records and their text. */
#include "core.h"

al_error *al_error_begin(al_error *error, al_error *spare) {
  if (!error) error = spare;
  *error = (al_error){.instruction = -1, .argument = -1};
  return error;
}

al_status al_error_set(al_error *error, al_status status, const char *name, int32_t argument, uint32_t needed,
                       uint32_t available) {
  error->status = status;
  error->argument = argument;
  error->name = name;
  error->name_size = name ? (uint32_t)strlen(name) : 0;
  error->needed = needed;
  error->available = available;
  return status;
}

/* Without a table of addresses: the texts stand one after the other, in the order of their numbers here. */
static const uint8_t numbers[] = {
#define X(name, number, text) number,
  AL_STATUSES(X)
#undef X
};
static const char texts[] =
#define X(name, number, text) text "\0"
  AL_STATUSES(X)
#undef X
  ;

const char *al_status_text(al_status status) {
  const char *text = texts;
  for (uint32_t i = 0; i < sizeof numbers; i++) {
    if (numbers[i] == (uint32_t)status) return text;
    text += strlen(text) + 1;
  }
  return "unknown error";
}

typedef struct writer {
  char *text;
  size_t size;
  size_t length;
} writer;

static void put(writer *w, const char *text, size_t count) {
  for (size_t i = 0; i < count; i++, w->length++) {
    if (w->length + 1 < w->size) w->text[w->length] = text[i];
  }
}

static void put_text(writer *w, const char *text) { put(w, text, strlen(text)); }

static void put_number(writer *w, const char *before, uint32_t number) {
  char digits[10];
  uint32_t count = 0;
  do digits[sizeof digits - ++count] = (char)('0' + number % 10);
  while (number /= 10);
  put_text(w, before);
  put(w, digits + sizeof digits - count, count);
}

/* "the arena is too small: arena 1: needed 1024, available 1008" or
 * "shapes do not fit the operator: aten::add.out, instruction 3, argument 1" */
size_t al_error_text(const al_error *error, char *text, size_t size) {
  writer w = {text, size, 0};
  put_text(&w, al_status_text(error->status));
  const char *separator = ": ";
  if (error->name) {
    put_text(&w, separator);
    put(&w, error->name, error->name_size);
    separator = ", ";
  }
  if (error->overload_size) {
    put_text(&w, ".");
    put(&w, error->overload, error->overload_size);
  }
  if (error->instruction >= 0) {
    put_text(&w, separator);
    put_number(&w, "instruction ", (uint32_t)error->instruction);
    separator = ", ";
  }
  if (error->argument >= 0) {
    put_text(&w, separator);
    put_number(&w, error->instruction >= 0 ? "argument " : "number ", (uint32_t)error->argument);
    separator = ", ";
  }
  if (error->status == AL_FILE_CORRUPT || error->status == AL_FILE_UNSUPPORTED) {
    if (error->name) put_number(&w, " at byte ", error->needed);
  } else if (error->status == AL_FILE_TOO_NEW) {
    put_number(&w, ": version ", error->needed);
  } else if (error->needed || error->available) {
    put_text(&w, separator);
    put_number(&w, "needed ", error->needed);
    put_number(&w, ", available ", error->available);
  }
  if (size) text[w.length < size ? w.length : size - 1] = 0;
  return w.length;
}
