"""Where run directories lie: on a disk or in a bucket, behind one small contract chosen by the path's scheme."""
