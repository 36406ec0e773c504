package provenance

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

const began forgeyard.Wall = 1_800_000_000_000

// twice is a job that was interrupted once, went on from its checkpoint, published something and
// delivered.
func twice() (*site.State, site.Job) {
	d := func(b byte) forgeyard.Digest { return forgeyard.Digest{b} }
	j := site.Job{
		ID: "J", Run: "R", SpecID: d(1), Status: job.Done, Attempt: "A", Epoch: 2, Interruptions: 1, ResumeFrom: d(3), Submitted: began, Started: began + 1000, Ended: began + 9000,
		Spec: job.Spec{Title: "a <long> build", Resume: job.Resume{Mode: job.ResumeApplication}, Effects: job.EffectsProtected, Inputs: []job.Input{{Path: "source", Tree: true, Digest: d(2)}}},
		History: []site.EpochRecord{
			{Epoch: 1, Attempt: "A", Lease: "L1", Runner: "N1", Session: "S1", Started: began + 500, Ended: began + 4000, Reason: lease.EndExpired, Detail: "n1 fell silent"},
			{Epoch: 2, Attempt: "A", Lease: "L2", Runner: "N2", Session: "S2", Resumed: d(3), Started: began + 5000, Ended: began + 9000, Reason: lease.EndCompleted, Detail: "done"},
		},
		Checkpoints: []checkpoint.Commit{
			{Seq: 1, Manifest: d(3), Payload: d(4), Bytes: 77, Attempt: "A", Epoch: 1, At: began + 2000, Consistency: checkpoint.Application},
			{Seq: 2, Manifest: d(5), Payload: d(6), Bytes: 78, Attempt: "A", Epoch: 2, At: began + 7000, Consistency: checkpoint.Application, State: checkpoint.Withdrawn, Why: "bad memory", By: "ana"},
		},
		Effects: []site.Effect{{Key: "publish/a", Kind: "upload", Idem: "a-1", State: site.EffectDone, Attempt: "A", Epoch: 1, Begun: began + 1500, Ended: began + 1600, By: "n1", Evidence: []byte("ok"), Digest: d(7)}},
		Steps:   []site.CommittedStep{{Name: "compile", Evidence: d(8), Epoch: 1, At: began + 1800, Outputs: []job.Output{{Path: "bin", Tree: true, Digest: d(9)}}}},
		Late:    []site.LateResult{{At: began + 8000, Epoch: 1, Runner: "N1", Message: "M", Outcome: job.OutcomeDone, Why: "epoch 1 is over"}},
		Result:  &job.Result{Outcome: job.OutcomeDone, Outputs: []job.Output{{Path: "out.bin", Digest: d(10), Size: 5}}},
	}
	s := &site.State{Site: "SITE", Index: 42, Incarnation: 1}
	s.Jobs = s.Jobs.Put("J", j)
	s.Runs = s.Runs.Put("R", site.Run{ID: "R", By: "ana"})
	s.Members = s.Members.Put("N2", site.Member{Runner: "N2", Name: "n2", Session: site.Session{ID: "S2", Version: "1.2.3"}})
	return s, j
}

var key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))

func sealed(st Statement) []byte {
	p := st.Payload()
	return Sealed(p, hex.EncodeToString(key.Public().(ed25519.PublicKey)), ed25519.Sign(key, PAE(p)))
}

var errForged = errors.New("not signed by this key")

// byKey is what a site does with the name of a node: the name is the key, and has one spelling.
func byKey(keyID string, data, sig []byte) error {
	k, err := hex.DecodeString(keyID)
	if err != nil || hex.EncodeToString(k) != keyID || len(k) != ed25519.PublicKeySize || !ed25519.Verify(k, data, sig) {
		return errForged
	}
	return nil
}

// CK-388: the resume chain stands in the provenance, in the format of version 1: an in-toto
// statement in a DSSE envelope.
func TestEnvelopeOfVersion1(t *testing.T) {
	s, j := twice()
	st := Of(s, j)
	golden.Text(t, "testdata/statement-v1.json", append(st.Payload(), '\n'))
	raw := golden.Text(t, "testdata/envelope-v1.json", append(sealed(st), '\n'))
	o, err := Open(raw, byKey)
	if err != nil {
		t.Fatal(err)
	}
	if why := Contradicts(s, o.Statement); why != "" || o.Statement.Job() != "J" {
		t.Errorf("job %s: %s", o.Statement.Job(), why)
	}
	c := o.Statement.Predicate.Chain
	if len(c.Epochs) != 2 || c.Epochs[1].ResumedFrom != c.Checkpoints[0].ID || len(c.Effects) != 1 || len(c.Steps) != 1 || len(c.Refused) != 1 {
		t.Errorf("%+v", c)
	}
}

// Any byte that is changed, left out or added makes it no envelope of ours.
func TestNoByteCanBeChanged(t *testing.T) {
	s, j := twice()
	raw := sealed(Of(s, j))
	bad := func(b []byte, how string, i int) {
		t.Helper()
		if _, err := Open(b, byKey); err == nil {
			t.Fatalf("byte %d %s, and it is believed: %q", i, how, b[max(0, i-20):min(len(b), i+20)])
		}
	}
	for i := range raw {
		for _, bits := range []byte{1, 0x20, 0x80} { // a neighbour, the other case, no letter at all
			b := bytes.Clone(raw)
			b[i] ^= bits
			bad(b, "changed", i)
		}
		bad(append(bytes.Clone(raw[:i]), raw[i+1:]...), "left out", i)
		bad(append(append(bytes.Clone(raw[:i]), ' '), raw[i:]...), "put before another", i)
	}
	bad(append(bytes.Clone(raw), "\n\n"...), "put after it", len(raw))
}

// Another node's key makes another envelope, and what is signed is bound to its type.
func TestWhatIsSigned(t *testing.T) {
	s, j := twice()
	p := Of(s, j).Payload()
	other := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	mine := hex.EncodeToString(key.Public().(ed25519.PublicKey))
	for name, raw := range map[string][]byte{
		"another key's":        Sealed(p, mine, ed25519.Sign(other, PAE(p))),
		"of the bytes alone":   Sealed(p, mine, ed25519.Sign(key, p)),
		"of another statement": Sealed([]byte(`{}`), mine, ed25519.Sign(key, PAE([]byte(`{}`)))),
		"empty":                nil,
		"too long":             make([]byte, MaxEnvelope+1),
	} {
		if _, err := Open(raw, byKey); err == nil {
			t.Errorf("%s is believed", name)
		}
	}
}

// What the log has otherwise is told; what it has more, or no more, is no contradiction.
func TestContradictions(t *testing.T) {
	s, j := twice()
	early := j
	early.Status, early.Ended, early.Result, early.Epoch, early.History = job.Running, 0, nil, 1, []site.EpochRecord{j.History[0]}
	early.History[0].Ended, early.History[0].Reason, early.History[0].Detail = 0, "", ""
	if why := Contradicts(s, Of(s, early)); why != "" {
		t.Error("what was stated while it ran: ", why)
	}
	for want, change := range map[string]func(*Statement){
		"spec": func(st *Statement) {
			st.Predicate.BuildDefinition.ExternalParameters.Spec.Digest = digest(forgeyard.Digest{99})
		},
		"site":               func(st *Statement) { st.Predicate.RunDetails.Builder.ID = "forgeyard:site/OTHER" },
		"failed":             func(st *Statement) { st.Predicate.RunDetails.Metadata.Status = "failed" },
		"subject":            func(st *Statement) { st.Subject[0].Digest = digest(forgeyard.Digest{99}) },
		"epoch 2":            func(st *Statement) { st.Predicate.Chain.Epochs[1].ResumedFrom = "" },
		"epoch 3":            func(st *Statement) { st.Predicate.Chain.Epochs[1].Epoch = 3 },
		"leaves out epoch 2": func(st *Statement) { st.Predicate.Chain.Epochs = st.Predicate.Chain.Epochs[:1] },
		"inputs": func(st *Statement) {
			st.Predicate.BuildDefinition.ResolvedDependencies = append(st.Predicate.BuildDefinition.ResolvedDependencies, Descriptor{Name: "x"})
		},
		"who asked":  func(st *Statement) { st.Predicate.RunDetails.Metadata.By = "somebody" },
		"checkpoint": func(st *Statement) { st.Predicate.Chain.Checkpoints[0].Payload = "b3:00" },
		"effect":     func(st *Statement) { st.Predicate.Chain.Effects[0].Evidence = "b3:00" },
		"effect no":  func(st *Statement) { st.Predicate.Chain.Effects[0].Key = "no" },
		"step":       func(st *Statement) { st.Predicate.Chain.Steps[0].Evidence = "b3:00" },
	} {
		_, j := twice()
		st := Of(s, j)
		change(&st)
		if why := Contradicts(s, st); !strings.Contains(why, want) {
			t.Errorf("%s: %q", want, why)
		}
	}
	gone := *s
	gone.Jobs = gone.Jobs.Delete("J")
	if why := Contradicts(&gone, Of(s, j)); why != "" {
		t.Error("a job that the log has forgotten: ", why)
	}
	j.History = j.History[1:]
	if st := Of(s, j); st.Predicate.Chain.Forgotten != 1 {
		t.Errorf("one epoch is forgotten, it says %d", st.Predicate.Chain.Forgotten)
	}
}

func FuzzOpen(f *testing.F) {
	s, j := twice()
	f.Add(sealed(Of(s, j)))
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"keyid":"","sig":""}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		asked := false
		o, err := Open(raw, func(string, []byte, []byte) error { asked = true; return nil })
		if err == nil && (!asked || len(o.Payload) == 0) {
			t.Errorf("opened without its signature: %q", raw)
		}
	})
}
