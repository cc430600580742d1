/* Included before everything else in the build that sleeps: WFE and SEV become the model in main.c.
 *
 * QEMU 7.2 takes both for NOP, which an architecture may do, so that a lost event would never be seen. Here WFE sleeps
 * (by WFI) unless the event register is set, and only SEV sets it: as on a Cortex-M3 with erratum 563915, the CPU that
 * forgives least. On others exceptions set it, too.
 */
#ifndef SLEEP_H
#define SLEEP_H
#define SLEEPS 1

/* r4: the stack stays a multiple of 8. */
__asm__(".macro wfe\n"
        " push {r0-r4, r12}\n mrs r0, apsr\n push {r0, lr}\n"
        " bl model_wfe\n"
        " pop {r0, lr}\n msr apsr_nzcvq, r0\n pop {r0-r4, r12}\n"
        ".endm\n"
        ".macro sev\n"
        " push {r0, r1}\n movw r0, #:lower16:model_event\n movt r0, #:upper16:model_event\n"
        " mov.w r1, #1\n str r1, [r0]\n pop {r0, r1}\n"
        ".endm\n");

#endif
