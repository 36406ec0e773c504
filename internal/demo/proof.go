package demo

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// proof is one claim with what was seen of it.
type proof struct {
	claim    string
	evidence string
	ok       bool
}

// proofs is the table at the end.
type proofs []proof

// add takes a claim down; evidence is what the product itself said.
func (p *proofs) add(ok bool, claim, evidence string, args ...any) {
	*p = append(*p, proof{claim, fmt.Sprintf(evidence, args...), ok})
}

// missing are the claims that were not seen.
func (p proofs) missing() []string {
	var out []string
	for _, x := range p {
		if !x.ok {
			out = append(out, x.claim)
		}
	}
	return out
}

func (p proofs) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "  \tWHAT WAS PROVED\tBY WHAT THE SITE ITSELF SAYS") // Flush reports a writer that fails
	for _, x := range p {
		word := "ok"
		if !x.ok {
			word = "NO"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", word, x.claim, x.evidence)
	}
	return t.Flush()
}

// done is one package that the workload has finished, and in which epoch.
type done struct {
	epoch uint64
	name  string
}

// parseReport reads the workload's list: a line `EPOCH PACKAGE` for each.
func parseReport(text string) ([]done, error) {
	var out []done
	for line := range strings.Lines(text) {
		epoch, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(epoch, 10, 64)
		if !ok || err != nil || name == "" {
			return nil, fmt.Errorf("%q is no line of the report", line)
		}
		out = append(out, done{n, name})
	}
	return out, nil
}

// checkReport says what is wrong with a report of these packages, whose first epoch had
// finished so many of them when it was lost; nothing wrong is "".
func checkReport(all []done, packages []string, first int) string {
	seen := map[string]bool{}
	for i, d := range all {
		want := uint64(1)
		if i >= first {
			want = 2
		}
		switch {
		case seen[d.name]:
			return d.name + " was finished twice"
		case !slices.Contains(packages, d.name):
			return d.name + " was not asked for"
		case d.epoch != want:
			return fmt.Sprintf("%s was finished in epoch %d, not in %d", d.name, d.epoch, want)
		}
		seen[d.name] = true
	}
	if len(all) != len(packages) {
		return fmt.Sprintf("%d of %d packages are in the report", len(all), len(packages))
	}
	return ""
}

// started lists the packages that a log says were begun, in order.
func started(log string) []string {
	var out []string
	for line := range strings.Lines(log) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), startMark); ok {
			out = append(out, p)
		}
	}
	return out
}

// repeated lists what was begun although it was finished before.
func repeated(begun []string, finished []done) []string {
	var out []string
	for _, p := range begun {
		if slices.ContainsFunc(finished, func(d done) bool { return d.name == p }) {
			out = append(out, p)
		}
	}
	return out
}

// inOrder reports whether the words occur among texts in this order, each at the
// beginning of one.
func inOrder(texts []string, words ...string) bool {
	i := 0
	for _, t := range texts {
		if i < len(words) && strings.HasPrefix(t, words[i]) {
			i++
		}
	}
	return i == len(words)
}
