package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// parseJSON decodes one JSON value strictly: bounded, UTF-8, no unknown, duplicate or
// differently cased key, nothing behind it. Key order and blanks are free, so that any
// language's JSON library can write these files; what is hashed is our own encoding.
func parseJSON(what string, b []byte, limit int, v any) error {
	bad := func(err error) error { return forgeyard.E("parse "+what, forgeyard.Invalid, err) }
	switch {
	case len(b) > limit:
		return forgeyard.Errorf("parse "+what, forgeyard.Limit, "%d bytes are more than the bound of %d", len(b), limit)
	case !utf8.Valid(b):
		return bad(fmt.Errorf("it is not UTF-8"))
	}
	if err := checkKeys(json.NewDecoder(bytes.NewReader(b))); err != nil {
		return bad(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return bad(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return bad(fmt.Errorf("something follows the value"))
	}
	return nil
}

// checkKeys walks one value. encoding/json takes the last of duplicate keys and folds
// case; both would let two readers see two different values.
func checkKeys(d *json.Decoder) error {
	type level struct {
		object bool
		key    bool // the next token is a key
		seen   map[string]bool
	}
	var stack []level
	for {
		t, err := d.Token()
		if err != nil {
			return err
		}
		top := len(stack) - 1
		if delim, ok := t.(json.Delim); ok && (delim == '}' || delim == ']') {
			stack = stack[:top]
		} else {
			if top >= 0 && stack[top].object {
				if stack[top].key {
					k, _ := t.(string)
					if stack[top].seen[k] || !lowerKey(k) {
						return fmt.Errorf("key %q stands twice or is unknown", forgeyard.Clip(k, 40))
					}
					stack[top].seen[k], stack[top].key = true, false
					continue
				}
				stack[top].key = true
			}
			if ok {
				if len(stack) == jsonDepth {
					return fmt.Errorf("it nests deeper than %d", jsonDepth)
				}
				stack = append(stack, level{object: delim == '{', key: delim == '{', seen: map[string]bool{}})
			}
		}
		if len(stack) == 0 {
			return nil
		}
	}
}

// lowerKey reports whether k could be one of our keys.
func lowerKey(k string) bool {
	for _, c := range []byte(k) {
		if (c < 'a' || c > 'z') && c != '_' && (c < '0' || c > '9') {
			return false
		}
	}
	return k != ""
}

// formatJSON is the one encoding: keys in the order of the struct, no blanks.
func formatJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	invariant.NoError(e.Encode(v), "every type of ours encodes")
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// StrictJSON is how the formats of the packages below this one are read.
func StrictJSON(what string, b []byte, limit int, v any) error { return parseJSON(what, b, limit, v) }

// CanonicalJSON is how they are written.
func CanonicalJSON(v any) []byte { return formatJSON(v) }
