package job

import (
	"reflect"
	"slices"
	"testing"
)

// RA-263: what a runner tells of its work is outputs by their digests and evidence, and
// nothing of what they are released as: no version, no title, no channel, no signature. A
// field that is new stands here once somebody has thought about that.
func TestResultsAreOutputsAndEvidence(t *testing.T) {
	want := map[string][]string{
		"Result":     {"Outcome", "Category", "Message", "ExitCode", "Steps", "Outputs", "Log", "Replicas", "Short", "Told", "Overran", "Diagnostics"},
		"Output":     {"Path", "Tree", "Digest", "Manifest", "Size"},
		"Diagnostic": {"Path", "Tree", "Digest", "Manifest", "Size", "Sensitive", "LeftOut"},
		"LogChunk":   {"Digest", "Manifest", "Size", "FirstSeq", "LastSeq"},
		"StepResult": {"Name", "ExitCode", "Signal", "Took"},
	}
	for _, v := range []any{Result{}, Output{}, Diagnostic{}, LogChunk{}, StepResult{}} {
		typ := reflect.TypeOf(v)
		var got []string
		for i := range typ.NumField() {
			got = append(got, typ.Field(i).Name)
		}
		if !slices.Equal(got, want[typ.Name()]) {
			t.Errorf("%s has the fields %v, judged were %v", typ.Name(), got, want[typ.Name()])
		}
	}
}
