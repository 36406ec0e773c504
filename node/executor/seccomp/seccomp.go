// Package seccomp says which system calls a workload may make, as a program for the
// kernel's filter.
//
// Nearly all are allowed: a job compiles, tests and talks, and nobody can list what that takes.
// Refused is what no job needs and what holes in the kernel are reached through: mounts and
// namespaces, the interfaces for drivers and tracing of the kernel, keys, other people's
// clocks, and sockets that are not for talking. Tracing its own processes stays allowed, since
// debuggers and leak checkers are tools of a build; no other job has the same user.
//
//	another architecture's call ──▶ the process is killed
//	a call that came after this list, or whose flags cannot be seen ──▶ ENOSYS
//	a call of the list ──▶ EPERM, for some only with certain arguments
//	all others ──▶ allowed
//
// Invariants: a call is refused before it runs, so a refusal never leaves half of it done; what
// is refused by argument is read from the registers, never from memory that another thread may
// change meanwhile.
//
// It makes programs and loads none. It knows amd64 and arm64; elsewhere there is no filter,
// and whoever asks is told so.
package seccomp

import (
	"encoding/binary"

	"github.com/forgeyard/forgeyard-node"
)

// Instruction is one of the classic packet filter, as the kernel takes it.
type Instruction struct {
	Code   uint16
	Jt, Jf uint8 // how many to skip when the comparison holds, and when not
	K      uint32
}

// Options of a filter.
type Options struct {
	// Clone3 allows clone3, for whoever has to fork into a control group of version 2 through
	// the filter. Its flags cannot be looked at, so namespaces can be asked for by it then.
	Clone3 bool
}

// machine is what differs between the architectures.
type machine struct {
	audit  uint32 // AUDIT_ARCH_*
	newest int    // the last call of the list
	x32    uint32 // numbers from here on are of another ABI; 0: there is none
	number func(rule) int
}

var machines = map[string]machine{
	"amd64": {0xc000003e, 471, 0x4000_0000, func(r rule) int { return r.amd64 }},
	"arm64": {0xc00000b7, 471, 0, func(r rule) int { return r.arm64 }},
}

// Program is the filter for a machine as Go names it. Unavailable: there is none for it.
func Program(goarch string, o Options) ([]Instruction, error) {
	m, ok := machines[goarch]
	if !ok {
		return nil, forgeyard.Errorf("seccomp", forgeyard.Unavailable, "there is no list of system calls for %s", goarch)
	}
	p := []Instruction{
		load(offArch), {jeq, 1, 0, m.audit}, ret(kill),
		load(offCall),
	}
	if m.x32 > 0 {
		p = append(p, Instruction{jge, 0, 1, m.x32}, ret(kill))
	}
	p = append(p, Instruction{jgt, 0, 1, uint32(m.newest)}, ret(unknownCall))
	for _, r := range rules {
		n := m.number(r)
		if n < 0 || o.Clone3 && r.name == "clone3" {
			continue
		}
		block := []Instruction{ret(r.refusal)}
		if r.look != nil {
			block = r.look(r.refusal)
		}
		p = append(p, Instruction{jeq, 0, uint8(len(block)), uint32(n)})
		p = append(p, block...)
	}
	return append(p, ret(allow)), nil
}

// Bytes is a program as bubblewrap reads it. Both machines are little endian.
func Bytes(p []Instruction) []byte {
	var b []byte
	for _, i := range p {
		b = binary.LittleEndian.AppendUint16(b, i.Code)
		b = append(b, i.Jt, i.Jf)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return b
}

// Codes of the instructions that are used, and where the kernel puts what they look at.
const (
	ldw  = 0x20 // load a word of the call's data
	and  = 0x54
	jeq  = 0x15
	jgt  = 0x25
	jge  = 0x35
	jset = 0x45
	retK = 0x06

	offCall = 0
	offArch = 4
	offArgs = 16 // of 8 bytes each, the low half first
)

// What becomes of a call. The error numbers are the same on both machines.
const (
	allow        = 0x7fff_0000
	kill         = 0x8000_0000
	refuse       = 0x0005_0000
	noPermission = refuse | 1  // EPERM
	unknownCall  = refuse | 38 // ENOSYS
	noFamily     = refuse | 97 // EAFNOSUPPORT
)

func load(off uint32) Instruction    { return Instruction{ldw, 0, 0, off} }
func arg(n uint32) Instruction       { return load(offArgs + 8*n) }
func ret(verdict uint32) Instruction { return Instruction{retK, 0, 0, verdict} }

// look is the part of a program that looks at arguments. It ends in a verdict on each way.
type look func(refusal uint32) []Instruction

// anyOf refuses when a bit of the mask is set in the low half of an argument. The kernel
// itself takes no more than that half of each argument that is looked at here.
func anyOf(n, mask uint32) look {
	return func(refusal uint32) []Instruction {
		return []Instruction{arg(n), {jset, 0, 1, mask}, ret(refusal), ret(allow)}
	}
}

// noneOf refuses some values.
func noneOf(n uint32, values ...uint32) look {
	return func(refusal uint32) []Instruction {
		b := []Instruction{arg(n)}
		for _, v := range values {
			b = append(b, Instruction{jeq, 0, 1, v}, ret(refusal))
		}
		return append(b, ret(allow))
	}
}

// onlyOf refuses all other values.
func onlyOf(n uint32, values ...uint32) look {
	return func(refusal uint32) []Instruction {
		b := []Instruction{arg(n)}
		for _, v := range values {
			b = append(b, Instruction{jeq, 0, 1, v}, ret(allow))
		}
		return append(b, ret(refusal))
	}
}

// sockets allows what programs talk by: unix sockets, IP without raw packets, and the part of
// netlink that lists addresses, which name resolvers ask.
func sockets() look {
	return func(refusal uint32) []Instruction {
		return []Instruction{
			arg(0),
			{jeq, 0, 1, afUnix}, ret(allow),
			{jeq, 0, 4, afNetlink}, arg(2), {jeq, 0, 1, netlinkRoute}, ret(allow), ret(noFamily),
			{jeq, 2, 0, afInet}, {jeq, 1, 0, afInet6}, ret(noFamily),
			arg(1), {and, 0, 0, sockType},
			{jeq, 0, 1, sockRaw}, ret(refusal),
			{jeq, 0, 1, sockPacket}, ret(refusal),
			ret(allow),
		}
	}
}

// Values that are looked for.
const (
	newNamespaces = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
	newTime       = 0x80 // of unshare; in clone it is part of a signal's number
	tiocSTI       = 0x5412
	tiocLinux     = 0x541c
	linux32       = 0x0008
	noRandomize   = 0x0004_0000
	queryOnly     = 0xffff_ffff
	afUnix        = 1
	afInet        = 2
	afInet6       = 10
	afNetlink     = 16
	netlinkRoute  = 0
	sockType      = 0xf // the rest of a type are flags
	sockRaw       = 3
	sockPacket    = 10
)

// rule is one call that is refused: -1 where a machine has none of that name.
type rule struct {
	name         string
	amd64, arm64 int
	refusal      uint32
	look         look // nil: whatever its arguments
}

// rules are looked through in this order.
var rules = []rule{
	// mounts and namespaces: a workload has the ones it was given
	{"mount", 165, 40, noPermission, nil},
	{"umount2", 166, 39, noPermission, nil},
	{"pivot_root", 155, 41, noPermission, nil},
	{"move_mount", 429, 429, noPermission, nil},
	{"open_tree", 428, 428, noPermission, nil},
	{"open_tree_attr", 467, 467, noPermission, nil},
	{"fsopen", 430, 430, noPermission, nil},
	{"fsconfig", 431, 431, noPermission, nil},
	{"fsmount", 432, 432, noPermission, nil},
	{"fspick", 433, 433, noPermission, nil},
	{"mount_setattr", 442, 442, noPermission, nil},
	{"setns", 308, 268, noPermission, nil},
	// files by handle pass by the folders above them
	{"open_by_handle_at", 304, 265, noPermission, nil},
	{"fanotify_init", 300, 262, noPermission, nil},
	// the kernel's large and young interfaces, from which most of its holes came
	{"bpf", 321, 280, noPermission, nil},
	{"perf_event_open", 298, 241, noPermission, nil},
	{"userfaultfd", 323, 282, noPermission, nil},
	{"lsm_set_self_attr", 460, 460, noPermission, nil},
	// keys are the user's, not the job's
	{"add_key", 248, 217, noPermission, nil},
	{"request_key", 249, 218, noPermission, nil},
	{"keyctl", 250, 219, noPermission, nil},
	// the machine itself
	{"kexec_load", 246, 104, noPermission, nil},
	{"kexec_file_load", 320, 294, noPermission, nil},
	{"init_module", 175, 105, noPermission, nil},
	{"finit_module", 313, 273, noPermission, nil},
	{"delete_module", 176, 106, noPermission, nil},
	{"create_module", 174, -1, noPermission, nil},
	{"query_module", 178, -1, noPermission, nil},
	{"reboot", 169, 142, noPermission, nil},
	{"swapon", 167, 224, noPermission, nil},
	{"swapoff", 168, 225, noPermission, nil},
	{"acct", 163, 89, noPermission, nil},
	{"quotactl", 179, 60, noPermission, nil},
	{"quotactl_fd", 443, 443, noPermission, nil},
	{"settimeofday", 164, 170, noPermission, nil},
	{"clock_settime", 227, 112, noPermission, nil},
	{"sethostname", 170, 161, noPermission, nil},
	{"setdomainname", 171, 162, noPermission, nil},
	{"syslog", 103, 116, noPermission, nil},
	{"iopl", 172, -1, noPermission, nil},
	{"ioperm", 173, -1, noPermission, nil},
	{"modify_ldt", 154, -1, noPermission, nil},
	{"vhangup", 153, 58, noPermission, nil},
	{"nfsservctl", 180, 42, noPermission, nil},
	// descriptors of other processes
	{"pidfd_getfd", 438, 438, noPermission, nil},
	{"kcmp", 312, 272, noPermission, nil},
	// programs know how to do without these, if they are told that there are none
	{"io_uring_setup", 425, 425, unknownCall, nil},
	{"io_uring_enter", 426, 426, unknownCall, nil},
	{"io_uring_register", 427, 427, unknownCall, nil},
	{"_sysctl", 156, -1, unknownCall, nil},
	{"uselib", 134, -1, unknownCall, nil},
	{"sysfs", 139, -1, unknownCall, nil},
	{"lookup_dcookie", 212, 18, unknownCall, nil},
	// harmless but with some arguments
	{"unshare", 272, 97, noPermission, anyOf(0, newNamespaces|newTime)},
	{"clone", 56, 220, noPermission, anyOf(0, newNamespaces)},
	{"ioctl", 16, 29, noPermission, noneOf(1, tiocSTI, tiocLinux)},
	{"personality", 135, 92, noPermission, onlyOf(0, 0, linux32, noRandomize, queryOnly)},
	{"socket", 41, 198, noPermission, sockets()},
	// its flags lie in memory, where a filter cannot look; programs fall back to clone
	{"clone3", 435, 435, unknownCall, nil},
}
