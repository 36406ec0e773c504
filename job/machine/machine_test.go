package machine

import (
	"slices"
	"strings"
	"testing"
)

// CK-013 014 015 072 076 077 078 079 080 081 303 350 384: what of a machine must be the same, and how much, is
// declared, and each difference is named.
func TestMisfits(t *testing.T) {
	made := Place{OS: "linux", Arch: "amd64", Machine: &Facts{
		Kernel: "6.1", Libc: "glibc 2.36", CPU: []string{"avx", "avx2"}, GPUs: []string{"nvidia L4 535"}, Tools: []string{"go 1.26.1"}, Devices: []string{"dut=board1"},
	}}
	change := func(f func(*Place, *Facts)) Place {
		p := made
		m := *made.Machine
		p.Machine = &m
		f(&p, p.Machine)
		return p
	}
	same := change(func(*Place, *Facts) {})
	other := map[string]Place{
		"os":     change(func(p *Place, _ *Facts) { p.OS = "darwin" }),
		"arch":   change(func(p *Place, _ *Facts) { p.Arch = "arm64" }),
		"kernel": change(func(_ *Place, m *Facts) { m.Kernel = "5.10" }), "kernel+": change(func(_ *Place, m *Facts) { m.Kernel = "6.12" }),
		"libc": change(func(_ *Place, m *Facts) { m.Libc = "musl 1.2" }), "libc-": change(func(_ *Place, m *Facts) { m.Libc = "glibc 2.31" }), "libc+": change(func(_ *Place, m *Facts) { m.Libc = "glibc 2.41" }),
		"tool+": change(func(_ *Place, m *Facts) { m.Tools = []string{"go 1.27"} }), "tool": change(func(_ *Place, m *Facts) { m.Tools = nil }),
		"cpu+": change(func(_ *Place, m *Facts) { m.CPU = []string{"avx", "avx2", "avx512f"} }), "cpu-": change(func(_ *Place, m *Facts) { m.CPU = []string{"avx"} }),
		"gpu+": change(func(_ *Place, m *Facts) { m.GPUs = []string{"nvidia A100 535"} }), "gpu": change(func(_ *Place, m *Facts) { m.GPUs = []string{"amd MI300 6"} }),
		"device": change(func(_ *Place, m *Facts) { m.Devices = []string{"dut=board2"} }),
	}
	all := func(s Sameness) Compatibility { return Compatibility{s, s, s, s, s, s} }
	for name, c := range map[string]struct {
		of     Compatibility
		refuse string
	}{
		"nothing declared": {Compatibility{}, "arch cpu+ cpu- kernel kernel+ libc libc+ libc- os tool tool+"},
		"all exact":        {all(Exact), "arch cpu+ cpu- device gpu gpu+ kernel kernel+ libc libc+ libc- os tool tool+"},
		"all compatible":   {all(Compatible), "arch cpu- gpu kernel libc libc- os tool"},
		"any":              {all(Any), ""},
		"gpu class":        {Compatibility{Any, Any, Any, Any, Class, Any}, "gpu"},
	} {
		var got []string
		for k, here := range other {
			if m := c.of.Misfits(made, here); len(m) > 0 {
				got = append(got, k)
				if m[0].Unknown || m[0].Why == "" || m[0].What == "" {
					t.Errorf("%s, %s: %+v", name, k, m)
				}
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.refuse {
			t.Errorf("%s refuses %q, want %q", name, got, c.refuse)
		}
		if m := c.of.Misfits(made, same); m != nil {
			t.Errorf("%s refuses the same machine: %+v", name, m)
		}
	}
}

// CK-096 376: what is not known is not good enough for a job that asks, and one of the version
// before said its platform alone.
func TestMisfitsOfWhatIsNotKnown(t *testing.T) {
	said, silent := Place{"linux", "amd64", &Facts{Kernel: "6.1"}}, Place{OS: "linux", Arch: "amd64"}
	for name, c := range map[string]struct {
		of         Compatibility
		made, here Place
		unknown    bool
	}{
		"an old one, nothing declared":        {Compatibility{}, silent, said, false},
		"an old one, exact declared":          {Compatibility{Baseline: Exact}, silent, said, true},
		"an old one, gpu declared":            {Compatibility{GPU: Class}, silent, said, true},
		"an old one, any declared":            {Compatibility{Baseline: Any, CPU: Any}, silent, said, false},
		"a runner of before":                  {Compatibility{}, said, silent, true},
		"a runner of before, nothing matters": {Compatibility{Exact, Exact, Any, Any, Any, Any}, said, silent, false},
	} {
		m := c.of.Misfits(c.made, c.here)
		if (len(m) > 0) != c.unknown || c.unknown && !m[0].Unknown {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if m := (Compatibility{}).Misfits(silent, Place{OS: "darwin", Arch: "amd64"}); len(m) != 1 || m[0].What != "os" {
		t.Errorf("an old one on another platform: %+v", m)
	}
}
