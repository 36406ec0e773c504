package forgeyard

import (
	"errors"
	"testing"
	"time"
)

func TestKindSurvivesWrapping(t *testing.T) {
	inner := Errorf("get", NotFound, "no such object")
	outer := E("submit", Other, inner)
	if got := KindOf(outer); got != NotFound {
		t.Fatalf("kind %v, want not_found", got)
	}
	if KindOf(errors.New("plain")) != Other {
		t.Fatal("a plain error has kind other")
	}
	for k := Other; k <= Interrupted; k++ {
		if ParseKind(k.String()) != k {
			t.Errorf("%v does not survive its text", k)
		}
	}
}

func TestDigestText(t *testing.T) {
	var d Digest
	d[0], d[31] = 0xab, 1
	back, err := ParseDigest(d.String())
	if err != nil || back != d {
		t.Fatalf("%v %v", back, err)
	}
	for _, bad := range []string{"", "b3:", "b3:zz", d.Hex(), "b3:" + Digest{}.Hex(), "B3:" + d.Hex()} {
		if _, err := ParseDigest(bad); KindOf(err) != Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestFenceOrder(t *testing.T) {
	order := []Fence{{}, {0, 0, 1}, {0, 1, 0}, {0, 1, 9}, {1, 0, 0}}
	for i := range order {
		for j := range order {
			if got, want := order[i].Compare(order[j]), sign(i-j); got != want {
				t.Errorf("%v against %v: %d, want %d", order[i], order[j], got, want)
			}
		}
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func TestDerivedIDsAreDistinctAndValid(t *testing.T) {
	at := time.UnixMilli(1_800_000_000_000)
	seen := map[string]bool{}
	for index := uint64(1); index < 50; index++ {
		for n := uint16(0); n < 4; n++ {
			id := DeriveULID(at, index, n)
			if seen[id] || CheckULID("job", id) != nil {
				t.Fatalf("%s at %d/%d", id, index, n)
			}
			seen[id] = true
		}
	}
	if KindOf(CheckULID("run", "../../etc/passwd")) != Invalid {
		t.Fatal("an unsafe run id is refused (RS-008, RS-009, RS-094, CK-425)")
	}
}

func TestFenceText(t *testing.T) {
	f := Fence{Incarnation: 1, Term: 2, Epoch: 1 << 63}
	if back, err := ParseFence(f.String()); err != nil || back != f {
		t.Fatalf("%v %v", back, err)
	}
	for _, bad := range []string{"", "1.2", "1.2.3.4", "01.2.3", "1.-2.3", "a.b.c"} {
		if _, err := ParseFence(bad); KindOf(err) != Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
