package roll

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// start is a process after others on one disk.
func start(nonces ...uint64) (b Boot) {
	for _, n := range nonces {
		b = b.Next(n)
	}
	return b
}

func claim(b Boot, term, index uint64) Claim {
	return Claim{ID: "n2", Boot: b, Term: term, Index: index}
}

func TestJudge(t *testing.T) {
	original := start(11, 12)
	known := Record{Number: 2, Nonce: 12, Floor: 100}
	for _, c := range []struct {
		says  string
		know  Record
		claim Claim
		acked uint64
		in    uint64
		want  Reason
	}{
		{says: "who was never heard is believed", claim: claim(start(11), 1, 0)},
		{says: "the same process speaks again, with what it said before it acknowledged more", know: known, claim: claim(original, 1, 0)},
		{says: "the next process has all that was acknowledged", know: known, claim: claim(original.Next(13), 1, 100)},
		{says: "some starts were not heard of", know: known, claim: claim(original.Next(13).Next(14).Next(15), 1, 100)},
		{says: "more starts than a chain has", know: known, claim: claim(Boot{Number: 40, Chain: make([]uint64, MaxChain)}, 1, 100)},
		{says: "an old copy is put back", know: known, claim: claim(start(11), 1, 500), want: Earlier},
		{says: "a copy is started beside its original", know: known, claim: claim(start(11, 99), 1, 500), want: Twin},
		{says: "and started again", know: known, claim: claim(start(11, 99, 98), 1, 500), want: Forked},
		{says: "a copy of the running process lacks what was committed", know: known, claim: claim(original.Next(13), 1, 99), want: Behind},
		{says: "what the leader has its word for and nobody has committed", know: known, claim: claim(original.Next(13), 7, 104), acked: 105, in: 7, want: Behind},
		{says: "of a later term it may have had to give that up", know: known, claim: claim(original.Next(13), 8, 104), acked: 105, in: 7},
		{says: "never what was committed", know: known, claim: claim(original.Next(13), 8, 99), acked: 105, in: 7, want: Behind},
		{says: "it gave its log up, and says so", know: known, claim: Claim{ID: "n2", Boot: original.Next(13), Rebuilding: true}},
	} {
		r, v := Judge(c.know, c.claim, c.acked, c.in)
		if v.Reason != c.want {
			t.Errorf("%s: %s", c.says, v)
		}
		if v.OK() && (r.Number != c.claim.Boot.Number || r.Floor != c.know.Floor) {
			t.Errorf("%s: it is known as %+v", c.says, r)
		}
		if !v.OK() && (r.Number != c.know.Number || r.Nonce != c.know.Nonce) {
			t.Errorf("%s: a refused process became the known one: %+v", c.says, r)
		}
	}
}

// Who was refused stays so when it has caught up and was started again; the original, whose
// past it is not in, goes on.
func TestRefusalsLast(t *testing.T) {
	known := Record{Number: 2, Nonce: 12, Floor: 100}
	copied := start(11, 12, 99)
	r, v := Judge(known, claim(copied, 1, 7), 0, 0)
	if v.Reason != Behind {
		t.Fatal(v)
	}
	for _, again := range []Boot{copied, copied.Next(98), copied.Next(98).Next(97)} {
		if r, v = Judge(r, claim(again, 1, 1000), 0, 0); v.Reason != Behind {
			t.Errorf("start %d: %s", again.Number, v)
		}
	}
	if r, v = Judge(r, claim(start(11, 12, 13), 1, 100), 0, 0); !v.OK() || r.Nonce != 13 {
		t.Errorf("the original: %s, known as %+v", v, r)
	}
	for n := range uint64(2 * MaxRefused) {
		r, _ = Judge(r, claim(start(11, 12, 200+n), 1, 1000), 0, 0)
	}
	if len(r.Refused) != MaxRefused {
		t.Errorf("%d refusals are remembered", len(r.Refused))
	}
}

// A refused disk is started more often than a chain reaches back: it stays refused, so do
// other processes from it, and the original goes on.
func TestRefusalsOutlastTheChain(t *testing.T) {
	r, v := Judge(Record{Number: 2, Nonce: 12, Floor: 100}, claim(start(11, 12, 99), 1, 7), 0, 0)
	if v.Reason != Behind {
		t.Fatal(v)
	}
	copied := start(11, 12, 99)
	for n := range uint64(4 * MaxChain) {
		copied = copied.Next(1000 + n)
		if r, v = Judge(r, claim(copied, 1, 1000), 0, 0); v.Reason != Behind {
			t.Fatalf("start %d: %s", copied.Number, v)
		}
	}
	if len(r.Refused) > 7 {
		t.Errorf("%d refusals of one disk are remembered", len(r.Refused))
	}
	if _, v = Judge(r, claim(start(11, 12, 99, 98), 1, 1000), 0, 0); v.Reason != Behind {
		t.Errorf("another process from the refused disk: %s", v)
	}
	if r, v = Judge(r, claim(start(11, 12, 13), 1, 100), 0, 0); !v.OK() || r.Nonce != 13 {
		t.Errorf("the original: %s, known as %+v", v, r)
	}
}

// A copy that has everything and is heard first takes its original's place, which then may
// not speak; the copy may, though its original is in its past.
func TestTheLaterOfTwoIsHeard(t *testing.T) {
	r, v := Judge(Record{Number: 2, Nonce: 12, Floor: 100}, claim(start(11, 12, 99), 1, 100), 0, 0)
	if !v.OK() {
		t.Fatal(v)
	}
	if r, v = Judge(r, claim(start(11, 12), 1, 101), 0, 0); v.Reason != Earlier {
		t.Errorf("the original: %s", v)
	}
	if _, v = Judge(r, claim(start(11, 12, 99, 98), 1, 101), 0, 0); !v.OK() {
		t.Errorf("the copy's next start: %s", v)
	}
	if _, v = Judge(r, claim(start(11, 12, 13), 1, 101), 0, 0); v.Reason != Twin {
		t.Errorf("the original's next start: %s", v)
	}
}

func forms() map[string][]byte {
	v := Verdict{Reason: Behind, Number: 3, Index: 100, At: 99}
	return map[string][]byte{
		"hello":        Hello{Claim: Claim{ID: "n2", Boot: start(1, 1<<63), Lineage: "2-X", Term: 7, Index: 1 << 41, Rebuilding: true}, Refused: &Refusal{Nonce: 9, Verdict: v}}.Encode(),
		"hello-voters": Hello{Claim: Claim{ID: "n2", Boot: start(5)}, Voters: []string{"n1", "n2"}}.Encode(),
		"own":          start(5, 6, 7).Encode(),
		"book":         Book{Lineage: "2-X", Known: map[string]Record{"n2": {Number: 3, Nonce: 7, Floor: 100, Refused: []Refusal{{Nonce: 9, Verdict: v}}}}}.Encode(),
	}
}

// The bytes on the wire and on the disk stay what they are.
func TestGolden(t *testing.T) {
	for name, b := range forms() {
		raw, err := os.ReadFile("testdata/" + name + ".hex")
		if err != nil {
			t.Fatalf("%v\n%x", err, b)
		}
		want, err := hex.DecodeString(strings.TrimSpace(string(raw)))
		if err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: %x, and it was %x (%v)", name, b, want, err)
		}
	}
}

// What a later program adds is passed over; what cannot be is refused.
func TestDecode(t *testing.T) {
	later := []byte("\xa3\x01\xa3\x01\x62n2\x02\xa2\x01\x01\x02\x81\x05\x18\x63\x01\x18\x63\x01\x18\x64\xa0")
	if h, err := DecodeHello(later); err != nil || h.Claim.ID != "n2" || h.Claim.Boot.Number != 1 {
		t.Errorf("%+v, %v", h, err)
	}
	for name, b := range map[string][]byte{
		"nothing":         {},
		"no id":           Hello{Claim: Claim{Boot: start(1)}}.Encode(),
		"no start":        Hello{Claim: Claim{ID: "n"}}.Encode(),
		"two for one":     Hello{Claim: Claim{ID: "n", Boot: Boot{Number: 1, Chain: []uint64{1, 2}}}}.Encode(),
		"too many nonces": Hello{Claim: Claim{ID: "n", Boot: Boot{Number: 99, Chain: make([]uint64, MaxChain+1)}}}.Encode(),
		"a long id":       Hello{Claim: Claim{ID: strings.Repeat("n", 300), Boot: start(1)}}.Encode(),
		"no voter's name": Hello{Claim: Claim{ID: "n", Boot: start(1)}, Voters: []string{"n", ""}}.Encode(),
		"too many voters": Hello{Claim: Claim{ID: "n", Boot: start(1)}, Voters: strings.Split(strings.Repeat("n,", MaxVoters)+"n", ",")}.Encode(),
		"too long":        make([]byte, MaxHello+1),
	} {
		if _, err := DecodeHello(b); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

func FuzzHello(f *testing.F) {
	for _, b := range forms() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHello(b)
		if err != nil {
			return
		}
		again, err := DecodeHello(h.Encode())
		if err != nil || !bytes.Equal(again.Encode(), h.Encode()) {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
		r, v := Judge(Record{Number: 2, Nonce: 12, Floor: 100}, h.Claim, 0, 0)
		if second, w := Judge(r, h.Claim, 0, 0); w.OK() != v.OK() || second.Number != r.Number {
			t.Fatalf("%+v: first %s, then %s", h.Claim, v, w)
		}
	})
}

func FuzzBook(f *testing.F) {
	for _, b := range forms() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := DecodeBook(b); err == nil {
			if again, err := DecodeBook(o.Encode()); err != nil || !bytes.Equal(again.Encode(), o.Encode()) {
				t.Fatalf("%+v became %+v, %v", o, again, err)
			}
		}
		if o, err := DecodeBoot(b); err == nil && !o.IsZero() {
			if next := o.Next(1); next.Number != o.Number+1 || next.check() != nil {
				t.Fatalf("%+v is followed by %+v", o, next)
			}
		}
	})
}
