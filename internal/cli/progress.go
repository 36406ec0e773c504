package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// How often progress is written: on a terminal as the eye follows, else rarely
// enough for a log.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 5 * time.Second
	barWidth  = 24

	usualColumns = 80
)

// Progress shows on stderr how far long work is. It is safe for concurrent use.
type Progress struct {
	w        io.Writer
	terminal bool
	what     string
	every    time.Duration

	mu          sync.Mutex // guards all below
	done, total int64      // bytes; total 0 is unknown
	had         int64      // of done: what an earlier try brought over
	items       int64
	last        time.Time
	start       time.Time
	written     bool
}

// NewProgress starts showing what. total in bytes may be 0 and be set later.
func (s *Shell) NewProgress(what string, total int64) *Progress {
	p := &Progress{w: s.Err, terminal: IsTerminal(s.Err), what: oneLine(what), every: lineEvery, total: total, start: time.Now()}
	if p.terminal {
		p.every = barEvery
	}
	p.last = p.start
	return p
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice|os.ModeCharDevice && f.Name() != os.DevNull
}

// SetTotal says how many bytes there are.
func (p *Progress) SetTotal(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = n
}

// Item counts a thing that is finished.
func (p *Progress) Item() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items++
}

// Add counts bytes.
func (p *Progress) Add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	now := time.Now()
	if now.Sub(p.last) < p.every {
		return
	}
	p.last = now
	p.show(now)
}

// Had counts bytes that an earlier try brought over, or with less than none takes back what
// turned out to be wrong. A log says so at once: it is why less is sent.
func (p *Progress) Had(n int64) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.had = p.done+n, p.had+n
	if !p.terminal && n > 0 {
		fmt.Fprintf(p.w, "%s goes on: %s came before\n", p.what, Size(n))
	}
}

// Close ends the display; what stood there is overwritten or left.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal && p.written {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (p *Progress) show(now time.Time) {
	p.written = true
	rate := ""
	if d := now.Sub(p.start).Seconds(); d > 0 {
		rate = Size(int64(float64(p.done-p.had)/d)) + "/s"
	}
	text := fmt.Sprintf("%s %s", p.what, Size(p.done))
	if p.total > 0 {
		text += " of " + Size(p.total)
	}
	if p.items > 0 {
		text += fmt.Sprintf(", %d files", p.items)
	}
	if !p.terminal {
		fmt.Fprintf(p.w, "%s, %s\n", text, rate)
		return
	}
	bar := ""
	if p.total > 0 {
		n := int(float64(min(p.done, p.total)) / float64(p.total) * barWidth)
		bar = " [" + strings.Repeat("#", n) + strings.Repeat(".", barWidth-n) + "]"
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", fit(text, bar+" "+rate, columns(p.w)))
}

// fit makes one line of the text and what stands behind it. A line that a terminal wraps
// cannot be written over: each redraw would leave its beginning behind.
func fit(text, behind string, width int) string {
	line := []rune(text)
	if room := max(width-1-len(behind), 0); len(line) > room {
		line = append(line[:max(room-1, 0)], '…')
	}
	line = append(line, []rune(behind)...)
	return string(line[:min(len(line), max(width-1, 0))])
}

// Reader counts what is read through it.
func (p *Progress) Reader(r io.Reader) io.Reader { return countReader{r, p} }

type countReader struct {
	r io.Reader
	p *Progress
}

func (c countReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.p.Add(int64(n))
	return n, err
}
