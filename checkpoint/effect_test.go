package checkpoint_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
)

// A marker that leaves an open effect out is not believed (CK-167).
func TestMarkerIsNotBelieved(t *testing.T) {
	c, err := checkpoint.NewContract(job.Resume{Mode: job.ResumeApplication, Checkpoint: job.CheckpointDecl{Files: []string{"s"}}}, checkpoint.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	m := checkpoint.Marker{V: 1, Attempt: attA, Epoch: 1, Seq: 1, Mode: job.ResumeApplication, Consistency: checkpoint.Application, Quiesced: true, Format: c.Format, Files: []checkpoint.File{{Path: "n", Size: 1, BLAKE3: cas.Sum([]byte("1"))}}}
	cur := checkpoint.Current{Attempt: attA, Epoch: 1}
	list := []checkpoint.Entry{{Path: "n", Kind: checkpoint.Regular, Size: 1, BLAKE3: cas.Sum([]byte("1"))}}
	if f := checkpoint.CheckMarker(m, 1, cur, c, list); !f.OK() {
		t.Fatal(f)
	}
	cur.Open = []string{"publish/a"}
	if f := checkpoint.CheckMarker(m, 1, cur, c, list); f.Code != checkpoint.CodeEffects {
		t.Error(f)
	}
	cur.Open, m.EffectsOpen = nil, []string{"log/a"}
	if f := checkpoint.CheckMarker(m, 1, cur, c, list); f.Code != checkpoint.CodeEffects {
		t.Error(f)
	}
	cur.MayBeOpen = func(k string) bool { return k == "log/a" }
	if f := checkpoint.CheckMarker(m, 1, cur, c, list); !f.OK() {
		t.Error(f)
	}
}

// TestEffectMessages holds what programs write about effects, and what they are answered.
func TestEffectMessages(t *testing.T) {
	var text strings.Builder
	all := []checkpoint.Message{
		{N: 1, Kind: checkpoint.MessageEffectBegin, Attempt: attA, Epoch: 2, Effect: &checkpoint.EffectNote{Key: "publish/a", Kind: "publish", Idem: "v1"}},
		{N: 2, Kind: checkpoint.MessageEffectDone, Attempt: attA, Epoch: 2, Effect: &checkpoint.EffectNote{Key: "publish/a", Evidence: []byte("receipt")}},
		{N: 3, Kind: checkpoint.MessageEffectAbort, Attempt: attA, Epoch: 2, Effect: &checkpoint.EffectNote{Key: "publish/a"}},
	}
	for _, m := range all {
		text.Write(append(m.Encode(), '\n'))
	}
	already := checkpoint.Answer{Status: checkpoint.StatusAlready, Evidence: []byte("receipt")}
	text.Write(append(already.Encode(), '\n'))
	lines := strings.Split(strings.TrimSpace(string(golden.Text(t, "testdata/effect-messages.txt", []byte(text.String())))), "\n")
	for i, want := range all {
		want.V = checkpoint.ProtocolVersion
		if got, err := checkpoint.ParseMessage([]byte(lines[i])); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: %v", got, err)
		}
	}
	if got, err := checkpoint.ParseAnswer([]byte(lines[3])); err != nil || string(got.Evidence) != "receipt" {
		t.Errorf("%+v: %v", got, err)
	}
	note := func(n checkpoint.EffectNote) *checkpoint.EffectNote { return &n }
	for why, m := range map[string]checkpoint.Message{
		"do not go together":   {N: 1, Kind: checkpoint.MessageEffectAbort, Attempt: attA, Epoch: 1},
		"are for effect-begin": {N: 1, Kind: checkpoint.MessageEffectBegin, Attempt: attA, Epoch: 1, Effect: note(checkpoint.EffectNote{Key: "a"})},
		"is empty":             {N: 1, Kind: checkpoint.MessageEffectAbort, Attempt: attA, Epoch: 1, Effect: note(checkpoint.EffectNote{})},
		"evidence is for":      {N: 1, Kind: checkpoint.MessageEffectDone, Attempt: attA, Epoch: 1, Effect: note(checkpoint.EffectNote{Key: "a"})},
		"the bound is 1024":    {N: 1, Kind: checkpoint.MessageEffectDone, Attempt: attA, Epoch: 1, Effect: note(checkpoint.EffectNote{Key: "a", Evidence: make([]byte, job.MaxEvidence+1)})},
		"letters, digits":      {N: 1, Kind: checkpoint.MessageEffectAbort, Attempt: attA, Epoch: 1, Effect: note(checkpoint.EffectNote{Key: "a b"})},
	} {
		if _, err := checkpoint.ParseMessage(m.Encode()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v: %v, want %q", m, err, why)
		}
	}
}
