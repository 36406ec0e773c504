//go:build unix

package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// screen is what a terminal of that width shows for the bytes that were written to it: its
// lines, and every state in which the cursor went back to the beginning of one.
func screen(b []byte, width int) (lines []string, drawn []string) {
	rows, at := [][]rune{nil}, 0
	for text := []rune(string(b)); len(text) > 0; {
		row := &rows[len(rows)-1]
		switch {
		case strings.HasPrefix(string(text), "\x1b[K"):
			*row, text = (*row)[:at], text[3:]
			continue
		case text[0] == '\r':
			if len(*row) > 0 && !strings.HasPrefix(string(text), "\r\n") {
				drawn = append(drawn, string(*row))
			}
			at = 0
		case text[0] == '\n':
			rows, at = append(rows, nil), 0
		default:
			if at == width {
				rows, at = append(rows, nil), 0
				row = &rows[len(rows)-1]
			}
			*row = append((*row)[:at], text[0])
			at++
		}
		text = text[1:]
	}
	for _, r := range rows {
		lines = append(lines, string(r))
	}
	return lines, drawn
}

// onTerminal runs f with a terminal of that width as stderr and gives what f wrote to it.
func onTerminal(t *testing.T, width uint16, f func(s *Shell)) []byte {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: width}); err != nil {
		t.Fatal(err)
	}
	all := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(master) // ends with an error when the other end is closed
		all <- b
	}()
	f(&Shell{Err: slave})
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	b := <-all
	_ = master.Close()
	return b
}

// TestBarOnATerminal: a bar is drawn over itself on one line however narrow the terminal
// and however long the name is, and leaves an empty line for what is said next.
func TestBarOnATerminal(t *testing.T) {
	for _, c := range []struct {
		width uint16
		what  string
		begin string
		bar   bool // is there room for it
	}{
		{100, "fetch firmware.bin", "fetch firmware.bin ", true},
		{60, "fetch " + strings.Repeat("long-", 60) + "name", "fetch long-", true},
		{60, "fetch a\x1b[2Jb\nc", "fetch a [2Jb c ", true},
		{9, "fetch firmware.bin", "", false},
	} {
		b := onTerminal(t, c.width, func(s *Shell) {
			p := s.NewProgress(c.what, 0)
			p.every = 0
			p.SetTotal(100 << 20)
			for range 4 {
				p.Item()
				p.Add(25 << 20)
			}
			p.Close()
			if _, err := io.WriteString(s.Err, "said next\n"); err != nil {
				t.Fatal(err)
			}
		})
		lines, drawn := screen(b, int(c.width))
		if len(lines) != 2 || lines[0] != "said next" {
			t.Errorf("%d columns: the terminal shows %q", c.width, lines)
		}
		if len(drawn) != 4 {
			t.Fatalf("%d columns: drawn %q", c.width, drawn)
		}
		for i, d := range drawn {
			want := "[" + strings.Repeat("#", (i+1)*barWidth/4) + strings.Repeat(".", barWidth-(i+1)*barWidth/4) + "]"
			if !strings.HasPrefix(d, c.begin) || strings.Contains(d, want) != c.bar {
				t.Errorf("%d columns: drawn %q, want %q in it", c.width, d, want)
			}
		}
	}
	if got := onTerminal(t, 80, func(s *Shell) { s.NewProgress("short work", 1).Close() }); len(got) != 0 {
		t.Errorf("work that took no time wrote %q", got)
	}
}

// TestNoBarWithoutATerminal: a file and a pipe get whole lines, and none for short work.
func TestNoBarWithoutATerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if IsTerminal(file) || IsTerminal(null) || IsTerminal(&bytes.Buffer{}) {
		t.Fatal("a file, the null device or a buffer is taken for a terminal")
	}
	s := &Shell{Err: file}
	short := s.NewProgress("short", 10)
	short.Add(10)
	short.Close()
	p := s.NewProgress("fetch x", 2048)
	p.every = 0
	p.Had(1024)
	p.Add(512)
	p.Item()
	p.Add(512)
	p.Close()
	b, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	if strings.ContainsAny(string(b), "\r\x1b[#") || len(lines) != 4 || lines[0] != "fetch x goes on: 1KiB came before" ||
		!strings.HasPrefix(lines[1], "fetch x 1.5KiB of 2KiB, ") || !strings.HasPrefix(lines[2], "fetch x 2KiB of 2KiB, 1 files, ") || lines[3] != "" {
		t.Errorf("%q", b)
	}
}
