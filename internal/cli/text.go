package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Page is text for a person: lines, facts with names, and tables with columns that
// stand under each other.
type Page struct {
	w   io.Writer
	tab *tabwriter.Writer
	err error // the first one
}

func newPage(w io.Writer) *Page { return &Page{w: w} }

// table says how columns are laid out: two spaces between them.
func (p *Page) open() *tabwriter.Writer {
	if p.tab == nil {
		p.tab = tabwriter.NewWriter(p.w, 0, 8, 2, ' ', 0)
	}
	return p.tab
}

func (p *Page) flush() error {
	if p.tab != nil {
		p.keep(p.tab.Flush())
		p.tab = nil
	}
	return p.err
}

func (p *Page) keep(err error) {
	if p.err == nil {
		p.err = err
	}
}

// Line writes a line of its own; columns before and after it do not line up.
func (p *Page) Line(format string, args ...any) {
	p.keep(p.flush())
	_, err := fmt.Fprintf(p.w, format+"\n", args...)
	p.keep(err)
}

// Row writes a row of a table, or of names and facts.
func (p *Page) Row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
		cells[i] = oneLine(cells[i])
	}
	_, err := fmt.Fprintln(p.open(), strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	p.keep(err)
}

// Fact writes a name and a value, and nothing for an empty value.
func (p *Page) Fact(name, format string, args ...any) {
	if v := fmt.Sprintf(format, args...); v != "" {
		p.Row(name, v)
	}
}

// Head starts a table with a title line.
func (p *Page) Head(title string, columns ...string) {
	p.Line("")
	p.Line("%s", title)
	if len(columns) > 0 {
		p.Row(columns...)
	}
}

// oneLine keeps what came from elsewhere from writing over the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}

// Dur writes a duration as a person says it: the two largest units.
func Dur(d time.Duration) string {
	neg := ""
	if d < 0 {
		neg, d = "-", -d
	}
	switch {
	case d == 0:
		return "0s"
	case d < time.Second:
		return neg + fmt.Sprintf("%dms", max(1, d.Milliseconds()))
	case d < 10*time.Second:
		return neg + strings.Replace(fmt.Sprintf("%.1fs", d.Seconds()), ".0s", "s", 1)
	case d < time.Minute:
		return neg + fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return neg + two(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return neg + two(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	}
	return neg + two(int(d.Hours())/24, "d", int(d.Hours())%24, "h")
}

func two(a int, ua string, b int, ub string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, ua)
	}
	return fmt.Sprintf("%d%s%d%s", a, ua, b, ub)
}

// PDur is Dur of a message; one that is not set is empty.
func PDur(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return Dur(d.AsDuration())
}

// Size writes bytes with binary units.
func Size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	v, u := float64(n)/1024, 0
	for v >= 1023.95 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	return strings.Replace(fmt.Sprintf("%.1f", v), ".0", "", 1) + string(units[u]) + "iB"
}

// Since writes how long ago something was.
func Since(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	d := now.Sub(t.AsTime())
	if d < 0 {
		d = 0 // clocks of two machines differ
	}
	return Dur(d) + " ago"
}

// Until writes how far away something is.
func Until(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	if d := t.AsTime().Sub(now); d > 0 {
		return "in " + Dur(d)
	}
	return "past"
}

// At writes a time in UTC.
func At(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// Labels writes a map as k=v,k=v in the order of its keys.
func Labels(m map[string]string) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ",")
}

// Yes writes a bool as a person says it.
func Yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Join writes words as a list.
func Join(words []string) string { return strings.Join(words, ", ") }
