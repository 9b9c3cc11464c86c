"""The seccomp filter, run as the kernel would, for machines that are not at hand too."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.sandbox.native.inside import confine, syscalls

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
KILL, EPERM, ENOSYS, ALLOW = "kill", errno.EPERM, errno.ENOSYS, 0
# arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
NUMBERS = {
    "x86_64": {"clone": 56, "unshare": 272, "ioctl": 16, "socket": 41, "prlimit64": 302, "read": 0, "execve": 59,
               "openat": 257, "memfd_create": 319},
    "aarch64": {"clone": 220, "unshare": 97, "ioctl": 29, "socket": 198, "prlimit64": 261, "read": 63, "execve": 221,
                "openat": 56, "memfd_create": 279},
}  # fmt: skip
DENIED = {
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "userfaultfd", "keyctl", "add_key", "request_key",
    "open_by_handle_at", "name_to_handle_at", "perf_event_open", "setns", "mount", "umount2", "pivot_root", "chroot",
    "fsopen", "fsmount", "open_tree", "move_mount", "mount_setattr", "ptrace", "process_vm_readv",
    "process_vm_writev", "pidfd_getfd", "kexec_load", "init_module", "finit_module", "reboot", "swapon",
}  # fmt: skip

machines = pytest.mark.parametrize("machine", ARCHES)


def judge(program: bytes, arch: int, number: int, *arguments: int) -> int | str:
    """What the filter says: ``kill``, an errno, or 0 for yes (classic BPF, filter.h; seccomp_data, seccomp.h)."""
    data = struct.pack("<iIQ6Q", number if number < 1 << 31 else number - (1 << 32), arch, 0,
                       *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code, at, value = list(struct.iter_unpack("HBBI", program)), 0, 0
    while True:
        operation, yes, no, operand = code[at]
        at += 1
        if operation == 0x20:
            value = struct.unpack_from("<I", data, operand)[0]
        elif operation == 0x06:
            return KILL if operand == 0x80000000 else ALLOW if operand == 0x7FFF0000 else operand & 0xFFFF
        else:
            met = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
            at += yes if met else no


@machines
def test_calls_past_a_sandbox_are_denied(machine: str) -> None:
    """Whatever their arguments, on both machines; what programs live by is allowed."""
    program, denied = confine.program(machine), confine.denied(machine)
    assert denied.keys() >= DENIED
    for name in denied:
        assert judge(program, ARCHES[machine], denied[name], 1, 2, 3) == EPERM, name
    assert judge(program, ARCHES[machine], 435) == ENOSYS, "clone3"
    for name in ("read", "execve", "openat", "memfd_create"):
        assert judge(program, ARCHES[machine], NUMBERS[machine][name]) == ALLOW, name


@machines
def test_arguments_decide_where_they_must(machine: str) -> None:
    """Namespaces, terminal injection, address families and limits of others are refused; the harmless is not."""
    program, numbers = confine.program(machine), NUMBERS[machine]

    def says(name: str, *arguments: int) -> int | str:
        return judge(program, ARCHES[machine], numbers[name], *arguments)

    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert says("clone", flag | 17) == says("unshare", flag) == EPERM, hex(flag)
    assert says("unshare", 0x80) == EPERM, "a time namespace"
    assert says("clone", 0x3D0F00) == says("clone", 17) == says("unshare", 0x400) == ALLOW, "threads, forks, files"
    assert says("ioctl", 0, 0x5412) == says("ioctl", 0, 0x541C) == EPERM
    assert says("ioctl", 0, 0x5401) == ALLOW
    for family in (1, 2, 10):
        assert says("socket", family, 1) == ALLOW
    for family in (17, 29, 38, 40, 44, 0, 3, 255):
        assert says("socket", family, 1) == errno.EAFNOSUPPORT, family
    assert (says("socket", 16, 3, 0), says("socket", 16, 3, 9)) == (ALLOW, errno.EPROTONOSUPPORT)
    assert (says("prlimit64", 0), says("prlimit64", 1)) == (ALLOW, EPERM)


@machines
def test_high_halves_of_arguments_hide_nothing(machine: str) -> None:
    """A bit above the 32 that a kernel call reads changes no answer."""
    program, numbers = confine.program(machine), NUMBERS[machine]
    for name, *arguments in (("ioctl", 0, 0x5412), ("clone", 0x10000000), ("unshare", 0x10000000), ("socket", 40)):
        wide = [argument | 1 << 40 for argument in arguments]
        assert judge(program, ARCHES[machine], numbers[name], *wide) != ALLOW, name


@given(number=st.integers(0, (1 << 32) - 1), arch=st.sampled_from([0x40000003, 0x40000028, 0xC00000F3, 0]))
def test_other_architectures_and_x32_end_the_process(number: int, arch: int) -> None:
    """A call of the 32-bit tables, or with the x32 bit on x86-64, is no call of this filter's."""
    for machine, own in ARCHES.items():
        program = confine.program(machine)
        assert judge(program, arch, number) == KILL
        assert judge(program, own, number) != KILL or (machine == "x86_64" and number >= 0x40000000)
    assert judge(confine.program("x86_64"), ARCHES["x86_64"], number | 0x40000000) == KILL


@machines
def test_a_sealed_box_has_no_memfd(machine: str) -> None:
    """The second filter takes away files that no mount holds, and nothing else."""
    program, numbers = confine.sealing_program(machine), NUMBERS[machine]
    assert judge(program, ARCHES[machine], numbers["memfd_create"]) == ENOSYS
    assert judge(program, ARCHES[machine], 447) == ENOSYS
    for name in numbers.keys() - {"memfd_create"}:
        assert judge(program, ARCHES[machine], numbers[name]) == ALLOW
    with pytest.raises(KeyError):
        confine.program("riscv64")


@pytest.mark.skipif(syscalls.MACHINE not in ARCHES, reason="no table for this machine")
def test_this_machine_runs_the_filter_we_judged() -> None:
    """The program for here is one the kernel takes: whole instructions, and no more than it allows."""
    program = confine.program(syscalls.MACHINE)
    assert len(program) % 8 == 0
    assert len(program) // 8 <= 4096  # BPF_MAXINSNS
