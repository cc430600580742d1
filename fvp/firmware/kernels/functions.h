/* Functions that C libraries approximate each in its own way: here a result is the same with newlib on a device as with
 * glibc on the host. Within 1.6 ULP, al_tan within 2; zeros, infinities and NaN as in C. */
#ifndef AL_FUNCTIONS_H
#define AL_FUNCTIONS_H

float al_acos(float x);
float al_acosh(float x);
float al_asin(float x);
float al_asinh(float x);
float al_atan(float x);
float al_atan2(float y, float x);
float al_atanh(float x);
float al_cosh(float x);
float al_erf(float x);
float al_expm1(float x);
float al_log1p(float x);
float al_sinh(float x);
float al_tan(float x);
float al_tanh(float x);

#endif
