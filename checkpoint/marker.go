package checkpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
)

// MarkerVersion is the only version of the marker.
const MarkerVersion = 1

// Marker is `.fy-checkpoint.json`: the last file of a sealed directory. It lists all
// others; that it is there and agrees with them is what tells a checkpoint from a
// leftover. Its digest is taken over Encode, whatever bytes the program wrote.
type Marker struct {
	V           int                 `json:"v"`
	Attempt     forgeyard.AttemptID `json:"attempt"`
	Epoch       uint64              `json:"epoch"`
	Seq         int                 `json:"seq"` // the slot's number
	Mode        job.ResumeMode      `json:"mode"`
	Consistency Consistency         `json:"consistency"`
	Quiesced    bool                `json:"quiesced"`
	Format      Format              `json:"format"`
	ParentSeq   int                 `json:"parent_seq,omitempty"` // 0: a full checkpoint
	Progress    Progress            `json:"progress,omitzero"`
	EffectsOpen []string            `json:"effects_open"`
	Files       []File              `json:"files"` // sorted by path
}

// Progress is how far the work is, in its own unit.
type Progress struct {
	Unit  string `json:"unit,omitempty" cbor:"1,keyasint,omitempty"`
	Done  int64  `json:"done" cbor:"2,keyasint,omitempty"`
	Total int64  `json:"total,omitempty" cbor:"3,keyasint,omitempty"` // 0: not known
}

// File is one file of a payload.
type File struct {
	Path   string           `json:"path"` // relative, slashes, clean
	Size   int64            `json:"size"`
	BLAKE3 forgeyard.Digest `json:"blake3"`
	Mode   FileMode         `json:"mode"`
}

// FileMode is the permission bits of a file, in octal text: "0644". Of them only
// whether it may be executed is restored.
type FileMode uint32

// Exec reports whether anybody may execute the file.
func (m FileMode) Exec() bool { return m&0o111 != 0 }

func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalText writes the octal text.
func (m FileMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads four octal digits.
func (m *FileMode) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 8, 32)
	if err != nil || v > 0o777 || len(b) != 4 {
		return forgeyard.Errorf("parse", forgeyard.Invalid, "mode %q is not four octal digits up to 0777", forgeyard.Clip(string(b), 20))
	}
	*m = FileMode(v)
	return nil
}

// Bytes is the size of the payload. MaxFiles times cas.MaxBlobSize fits in 63 bits, so
// the sum of a parsed marker cannot wrap.
func (m Marker) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Encode gives the one encoding of the marker, files sorted.
func (m Marker) Encode() []byte {
	m.Files = slices.Clone(m.Files)
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	if m.Files == nil {
		m.Files = []File{}
	}
	if m.EffectsOpen == nil {
		m.EffectsOpen = []string{}
	}
	return formatJSON(m)
}

// Digest names the marker.
func (m Marker) Digest() forgeyard.Digest { return cas.Sum(m.Encode()) }

// ParseMarker reads a marker strictly and checks all that it says by itself. The
// files of the result are sorted.
func ParseMarker(b []byte) (Marker, error) {
	var m Marker
	if err := parseJSON("marker", b, MaxMarkerBytes, &m); err != nil {
		return Marker{}, err
	}
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	if err := m.validate(); err != nil {
		return Marker{}, err
	}
	if m.EffectsOpen == nil {
		m.EffectsOpen = []string{}
	}
	return m, nil
}

func (m Marker) validate() error {
	bad := func(format string, args ...any) error {
		return forgeyard.Errorf("parse marker", forgeyard.Invalid, format, args...)
	}
	switch {
	case m.V != MarkerVersion:
		return bad("version %d is not %d", m.V, MarkerVersion)
	case m.Epoch == 0:
		return bad("epoch 0: epochs start at 1")
	case m.Seq < 1 || m.Seq > MaxSeq:
		return bad("seq %d is not in [1, %d]", m.Seq, MaxSeq)
	case m.ParentSeq < 0 || m.ParentSeq >= m.Seq:
		return bad("parent_seq %d is not before seq %d", m.ParentSeq, m.Seq)
	case m.Consistency.rank() == 0:
		return bad("consistency %q is not one of application, framework, crash, best-effort", forgeyard.Clip(string(m.Consistency), 40))
	case len(m.Format.Name) > MaxText || m.Format.Version < 0:
		return bad("format %q: a name has at most %d bytes and a version is not negative", forgeyard.Clip(m.Format.Name, 40), MaxText)
	case len(m.Mode) > MaxText || len(m.Progress.Unit) > MaxText:
		return bad("mode or progress unit has more than %d bytes", MaxText)
	case m.Progress.Done < 0 || m.Progress.Total < 0:
		return bad("progress %d/%d is negative", m.Progress.Done, m.Progress.Total)
	case len(m.EffectsOpen) > MaxEffects:
		return bad("%d open effects are more than %d", len(m.EffectsOpen), MaxEffects)
	case len(m.Files) > MaxFiles:
		return forgeyard.Errorf("parse marker", forgeyard.Limit, "%d files are more than the bound of %d", len(m.Files), MaxFiles)
	}
	if err := forgeyard.CheckULID("attempt", string(m.Attempt)); err != nil {
		return bad("attempt %q is not an id", forgeyard.Clip(string(m.Attempt), 40))
	}
	return m.validateFiles()
}

func (m Marker) validateFiles() error {
	dirs := map[string]bool{}
	for i, f := range m.Files {
		bad := func(why string) error {
			return forgeyard.Errorf("parse marker", forgeyard.Invalid, "file %q %s", forgeyard.Clip(f.Path, 80), why)
		}
		if why := badPath(f.Path); why != "" {
			return bad(why)
		}
		switch {
		case i > 0 && m.Files[i-1].Path == f.Path:
			return bad("stands twice")
		case f.BLAKE3.IsZero():
			return bad("has no blake3")
		case f.Size < 0 || f.Size > cas.MaxBlobSize:
			return bad(fmt.Sprintf("has size %d, which is not in [0, %d]", f.Size, cas.MaxBlobSize))
		case (f.Size == 0) != (f.BLAKE3 == cas.Empty()):
			return bad("has a size and a blake3 that disagree on whether it is empty")
		case f.Mode > 0o777:
			return bad("has mode bits beyond 0777")
		}
		for d := parent(f.Path); d != "" && !dirs[d]; d = parent(d) {
			dirs[d] = true
		}
	}
	for _, f := range m.Files {
		if dirs[f.Path] {
			return forgeyard.Errorf("parse marker", forgeyard.Invalid, "file %q is also a directory", forgeyard.Clip(f.Path, 80))
		}
	}
	return nil
}

// parent is the directory of a path, "" at the root.
func parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}
