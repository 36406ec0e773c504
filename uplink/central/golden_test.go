package central

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// TestRowsOfVersion1 holds every kind of row of the daemon's file still.
func TestRowsOfVersion1(t *testing.T) {
	rows := []any{&Site{}, &ticketRow{}, &Job{}, &recordRow{}, &auditRow{}}
	var today []golden.Row
	for _, v := range rows {
		golden.Fill(t, v, "Job.End", "Grant.End", "Connectivity.NoReplace") // those came later
		today = append(today, golden.Row{Name: reflect.TypeOf(v).Elem().Name(), Bytes: cborx.Marshal(v)})
	}
	for i, row := range golden.Rows(t, "testdata/rows-v1.hex", today) {
		got := reflect.New(reflect.TypeOf(rows[i]).Elem()).Interface()
		if err := cborx.Unmarshal(row.Bytes, got); err != nil || !reflect.DeepEqual(got, rows[i]) {
			t.Errorf("%s: %+v %v", row.Name, got, err)
		}
	}
}
