package seccomp

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// call is what the kernel shows to a filter.
type call struct {
	nr, arch uint32
	args     [6]uint64
}

// verdict runs a program as the kernel does, and knows nothing of how it was made.
func verdict(t *testing.T, p []Instruction, c call) uint32 {
	t.Helper()
	var acc uint32
	for pc := 0; pc < len(p); pc++ {
		i := p[pc]
		yes := false
		switch i.Code {
		case 0x20:
			switch {
			case i.K == 0:
				acc = c.nr
			case i.K == 4:
				acc = c.arch
			case i.K >= 16 && i.K < 64 && i.K%8 == 0:
				acc = uint32(c.args[(i.K-16)/8])
			default:
				t.Fatalf("instruction %d loads from %d", pc, i.K)
			}
			continue
		case 0x54:
			acc &= i.K
			continue
		case 0x06:
			return i.K
		case 0x15:
			yes = acc == i.K
		case 0x25:
			yes = acc > i.K
		case 0x35:
			yes = acc >= i.K
		case 0x45:
			yes = acc&i.K != 0
		default:
			t.Fatalf("instruction %d has code %#x", pc, i.Code)
		}
		if yes {
			pc += int(i.Jt)
		} else {
			pc += int(i.Jf)
		}
	}
	t.Fatal("the program runs off its end")
	return 0
}

var audit = map[string]uint32{"amd64": 0xc000003e, "arm64": 0xc00000b7}

func number(r rule, arch string) int {
	if arch == "amd64" {
		return r.amd64
	}
	return r.arm64
}

// Every call of both machines: what stands in the list is refused, and nothing else.
func TestEachCall(t *testing.T) {
	for arch, a := range audit {
		for _, clone3 := range []bool{false, true} {
			p, err := Program(arch, Options{Clone3: clone3})
			if err != nil {
				t.Fatal(err)
			}
			for nr := range uint32(600) {
				want := uint32(allow)
				if nr > 471 {
					want = unknownCall
				}
				for _, r := range rules {
					if number(r, arch) == int(nr) && r.look == nil && (!clone3 || r.name != "clone3") {
						want = r.refusal
					}
				}
				// Arguments that no rule minds: unix sockets, no flags.
				if got := verdict(t, p, call{nr, a, [6]uint64{0: 0}}); got != want && !byArgument(nr, arch) {
					t.Errorf("%s call %d: %#x, want %#x", arch, nr, got, want)
				}
			}
			for _, bad := range []call{{nr: 0, arch: 0x40000003}, {nr: 1, arch: 0}, {nr: 0x4000_0000, arch: 0xc000003e}} {
				if got := verdict(t, p, bad); got != kill && (bad.arch != a || got != unknownCall) {
					t.Errorf("%s: %+v gave %#x", arch, bad, got)
				}
			}
		}
	}
}

func byArgument(nr uint32, arch string) bool {
	return slices.ContainsFunc(rules, func(r rule) bool { return r.look != nil && number(r, arch) == int(nr) })
}

func TestArguments(t *testing.T) {
	const high = 0xdead_0000_0000 // the kernel does not look at it, and nor may a rule be misled by it
	for _, c := range []struct {
		name string
		args [6]uint64
		want uint32
	}{
		{"clone", [6]uint64{0x11}, allow},              // fork
		{"clone", [6]uint64{0x3d0f00}, allow},          // a thread
		{"clone", [6]uint64{0x80}, allow},              // a signal's number
		{"clone", [6]uint64{0x10000011}, noPermission}, // a user namespace
		{"clone", [6]uint64{high | 0x40000000}, noPermission},
		{"unshare", [6]uint64{0x200}, allow}, // own table of folders
		{"unshare", [6]uint64{0x20000}, noPermission},
		{"unshare", [6]uint64{0x80}, noPermission}, // a time namespace
		{"ioctl", [6]uint64{0, 0x5401}, allow},
		{"ioctl", [6]uint64{0, 0x5412}, noPermission},
		{"ioctl", [6]uint64{0, high | 0x5412}, noPermission},
		{"ioctl", [6]uint64{0, 0x541c}, noPermission},
		{"personality", [6]uint64{0xffffffff}, allow},
		{"personality", [6]uint64{0x40000}, allow},
		{"personality", [6]uint64{0x400000}, noPermission}, // read implies exec
		{"socket", [6]uint64{1, 1}, allow},
		{"socket", [6]uint64{2, 1 | 0x80800}, allow},
		{"socket", [6]uint64{10, 2, 58}, allow}, // ping
		{"socket", [6]uint64{2, 3, 1}, noPermission},
		{"socket", [6]uint64{10, 3 | 0x80000, 255}, noPermission},
		{"socket", [6]uint64{2, 10}, noPermission},
		{"socket", [6]uint64{16, 3, 0}, allow},    // the list of addresses
		{"socket", [6]uint64{16, 3, 9}, noFamily}, // audit
		{"socket", [6]uint64{17, 3}, noFamily},    // packets
		{"socket", [6]uint64{38, 5}, noFamily},    // the kernel's ciphers
		{"socket", [6]uint64{40, 1}, noFamily},    // to the host of a virtual machine
		{"socket", [6]uint64{high | 17, 3}, noFamily},
	} {
		for arch, a := range audit {
			p, err := Program(arch, Options{})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == c.name })
			if got := verdict(t, p, call{uint32(number(rules[i], arch)), a, c.args}); got != c.want {
				t.Errorf("%s: %s %#x gave %#x, want %#x", arch, c.name, c.args, got, c.want)
			}
		}
	}
}

// The programs, byte by byte: a change of the list is a change of what jobs may do.
func TestPrograms(t *testing.T) {
	for arch := range audit {
		p, err := Program(arch, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p) > 4096 {
			t.Errorf("%s: %d instructions, the kernel takes 4096", arch, len(p))
		}
		var text strings.Builder
		for i := range slices.Chunk(Bytes(p), 8) {
			text.WriteString(hex.EncodeToString(i) + "\n")
		}
		golden.Text(t, "testdata/"+arch+".hex", []byte(text.String()))
	}
	if _, err := Program("riscv64", Options{}); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("%v", err)
	}
	if b := Bytes([]Instruction{{jeq, 1, 2, 0xc000003e}}); !bytes.Equal(b, []byte{0x15, 0, 1, 2, 0x3e, 0, 0, 0xc0}) {
		t.Errorf("%x", b)
	}
}
