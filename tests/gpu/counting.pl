# Of a random model of characters (graphrun init), one that counts: each token is followed by the next id, and the last id by the
# one that ends a response. So the first token of a turn says how long the turn is, and as much is computed as with any weights: the
# products that a layer adds are by matrices of zeros, and the head knows the embedding of the id before.
# usage: counting.pl MODEL VOCABULARY HIDDEN
use strict;
my ($model, $vocab, $hidden) = @ARGV;
my $end = 1; # the id that ends a response
open my $f, "+<:raw", "$model/model.safetensors" or die "$model: $!";
read($f, my $word, 8) == 8 or die;
my $n = unpack("Q<", $word);
read($f, my $head, $n) == $n or die;
my %at;
$at{$1} = [8 + $n + $3, $4 - $3, $2] while $head =~ /"([^"]+)":\{"dtype":"(\w+)","shape":\[[\d,]*\],"data_offsets":\[(\d+),(\d+)\]\}/g;
sub put { seek($f, $_[0], 0) or die; print $f $_[1] or die }
for my $name (grep /(o_proj|down_proj)\.weight$/, keys %at) {
    my ($from, $bytes) = @{$at{$name}};
    put($from, "\0" x $bytes);
}
my ($embed, $bytes, $type) = @{$at{"model.embed_tokens.weight"}};
$type eq "F32" && $bytes == 4 * $vocab * $hidden or die "embedding: $type, $bytes bytes";
seek($f, $embed, 0) or die;
read($f, my $e, $bytes) == $bytes or die;
my @row = map { substr($e, $_ * 4 * $hidden, 4 * $hidden) } 0 .. $vocab - 1;
my @before = map { $_ > 4 ? $_ - 1 : $_ == $end ? $vocab - 1 : undef } 0 .. $vocab - 1; # ids below 4 are special
put($at{"lm_head.weight"}[0], join("", map { defined $_ ? pack("f<*", map { 4096 / $hidden * $_ } unpack("f<*", $row[$_])) : "\0" x (4 * $hidden) } @before));
close $f or die;
