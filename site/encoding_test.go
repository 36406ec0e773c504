package site

import (
	"reflect"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
)

// The name follows the shape of the state and nothing else.
func TestEncodingNamesTheShape(t *testing.T) {
	first, again := Encoding(), Encoding()
	if first != again || first == "" {
		t.Fatalf("one program has one name, not %q and %q", first, again)
	}
	of := func(v any) string {
		var b strings.Builder
		shape(&b, reflect.TypeOf(v), map[reflect.Type]bool{})
		return b.String()
	}
	type inner struct {
		A int `cbor:"1,keyasint"`
	}
	type other struct {
		A int `cbor:"2,keyasint"`
	}
	type holds[T any] struct{ All map[string][]*T }
	if strings.ReplaceAll(of(holds[inner]{}), "inner", "x") == strings.ReplaceAll(of(holds[other]{}), "other", "x") {
		t.Fatal("a changed key deep inside changes the name")
	}
}

// Whatever letters people write in, what they say is cut where it is too long, and the state
// that keeps it can be read back: by a restart, by a new voter and from a backup. One that an
// earlier version cut inside a letter can be read, too.
func TestLongWordsInAnyLetters(t *testing.T) {
	for _, letter := range []string{"щ", "工", "🏭"} {
		for shift := range len(letter) {
			c := newChaos(1)
			c.must(Register{Formats: Formats, Runner: "R1", Session: "S1", Caps: job.Capabilities{MilliCPU: 8000, Memory: 1 << 34, Disk: 1 << 40, MaxJobs: 99}})
			raw := job.Spec{Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
			c.must(Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)})
			c.must(Offer{Job: c.someJob().ID, Runner: "R1", Session: "S1"})
			a := c.someJob().Lease.Authority
			c.must(Accept{Authority: a})
			words := strings.Repeat("x", shift) + strings.Repeat(letter, 3000)
			c.must(Cancel{Job: a.Job, Note: words, Reason: job.CancelIncident})
			c.must(Release{Authority: a, Kind: "drain", Detail: words})
			for what, b := range map[string][]byte{"plain": c.s.Encode(), "packed": c.s.Snapshot()} {
				back, err := DecodeState(b)
				if err != nil || back.Hash() != c.s.Hash() {
					t.Fatalf("%s of %s after %d: %v", what, letter, shift, err)
				}
			}
		}
	}
	im := image{Format: snapshotFormat, Jobs: []Job{{ID: "J", Reason: "щщ"[:3]}}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	if j, _ := s.Jobs.Get("J"); j.Reason != "щщ"[:3] {
		t.Errorf("%q", j.Reason)
	}
	if err := cborx.Unmarshal(cborx.Marshal(im), &im); err == nil {
		t.Error("from elsewhere it is taken as well")
	}
}
