package cursor

import (
	"bytes"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// Plan is the list of tests, in the order in which they run.
type Plan []string

// ParsePlan reads one id a line. An empty line, a repeated id and a last line that is not
// ended are errors: a list that was cut would make the rest of the tests seem done.
func ParsePlan(b []byte) (Plan, error) {
	bad := func(format string, args ...any) (Plan, error) {
		return nil, forgeyard.Errorf("test plan", forgeyard.Invalid, format, args...)
	}
	switch {
	case len(b) > MaxBytes:
		return nil, forgeyard.Errorf("test plan", forgeyard.Limit, "%d bytes are more than the bound of %d", len(b), MaxBytes)
	case len(b) == 0:
		return bad("it names no test")
	case b[len(b)-1] != '\n':
		return bad("its last line is not ended")
	case bytes.Count(b, []byte("\n")) > MaxTests:
		return nil, forgeyard.Errorf("test plan", forgeyard.Limit, "%d tests are more than the bound of %d", bytes.Count(b, []byte("\n")), MaxTests)
	}
	seen := map[string]bool{}
	var p Plan
	for id := range strings.SplitSeq(strings.TrimSuffix(string(b), "\n"), "\n") {
		if why := badID(id); why != "" {
			return bad("line %d: %s", len(p)+1, why)
		}
		if seen[id] {
			return bad("line %d: test %q stands twice", len(p)+1, forgeyard.Clip(id, 80))
		}
		seen[id] = true
		p = append(p, id)
	}
	return p, nil
}

// Encode writes it.
func (p Plan) Encode() []byte { return []byte(strings.Join(p, "\n") + "\n") }

// Digest names the list.
func (p Plan) Digest() forgeyard.Digest { return cas.Sum(p.Encode()) }

// Suite is what of an id is shared by tests that share state: what stands before `::`, else
// the folder. Tests with neither are one suite.
func Suite(id string) string {
	if s, _, ok := strings.Cut(id, "::"); ok {
		return s
	}
	if i := strings.LastIndexByte(id, '/'); i >= 0 {
		return id[:i]
	}
	return ""
}

// BindingVersion is the only version of the binding.
const BindingVersion = 1

// Binding is what results belong to.
type Binding struct {
	V         int              `json:"v"`
	List      forgeyard.Digest `json:"list"`
	Tests     int              `json:"tests"`
	Binary    forgeyard.Digest `json:"binary,omitzero"` // of what is tested; zero: the spec alone binds it
	Isolation job.Isolation    `json:"isolation"`
}

// Bind makes the binding of a list.
func Bind(p Plan, binary forgeyard.Digest, i job.Isolation) Binding {
	return Binding{V: BindingVersion, List: p.Digest(), Tests: len(p), Binary: binary, Isolation: i}
}

// Encode writes it.
func (b Binding) Encode() []byte { return checkpoint.CanonicalJSON(b) }

// ParseBinding reads it.
func ParseBinding(b []byte) (Binding, error) {
	var x Binding
	if err := checkpoint.StrictJSON("test binding", b, checkpoint.MaxControlBytes, &x); err != nil {
		return Binding{}, err
	}
	if x.V != BindingVersion || x.List.IsZero() || x.Tests < 1 || x.Tests > MaxTests || !slices.Contains(job.Isolations, x.Isolation) {
		return Binding{}, forgeyard.Errorf("test binding", forgeyard.Invalid, "v %d, %d tests, isolation %q: not a binding of version %d", x.V, x.Tests, forgeyard.Clip(string(x.Isolation), 40), BindingVersion)
	}
	return x, nil
}

// The codes of a cursor that is not carried on.
const (
	CodeList      checkpoint.Code = "test-list"
	CodeBinary    checkpoint.Code = "test-binary"
	CodeIsolation checkpoint.Code = "test-isolation"
)

// Carries says whether results that were bound to old count for what is bound to b. All
// but Valid means that every test runs again.
func (b Binding) Carries(old Binding) checkpoint.Finding {
	no := func(c checkpoint.Code, detail string) checkpoint.Finding {
		return checkpoint.Finding{Verdict: checkpoint.Incompatible, Code: c, Detail: detail}
	}
	switch {
	case b.List != old.List:
		return no(CodeList, "the list of tests changed from "+old.List.Short()+" to "+b.List.Short())
	case b.Binary != old.Binary:
		return no(CodeBinary, "what is tested changed from "+old.Binary.Short()+" to "+b.Binary.Short())
	case b.Isolation != old.Isolation:
		return no(CodeIsolation, "the isolation changed from "+string(old.Isolation)+" to "+string(b.Isolation))
	case b.Isolation == job.Ordered:
		return no(CodeIsolation, "ordered tests begin anew")
	}
	return checkpoint.Finding{Verdict: checkpoint.Valid}
}
