"""Draw the README's picture: the hyperposterior of its example beside the ML-II point.

python docs/images/make_hyperposterior.py
"""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from integrand import SparseGPRegressor
from integrand.report import figures

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X_train, _, y_train, _ = train_test_split(X, y, random_state=0)
gp = SparseGPRegressor(n_inducing=50, random_state=0).fit(X_train, y_train)
names = ["lengthscale[bmi]", "lengthscale[s5]", "scale", "noise"]
axes = figures.hyperposterior(gp.posterior_, names=names)
figure = axes.flat[0].figure
FigureCanvasAgg(figure)
figure.savefig(Path(__file__).with_name("hyperposterior.png"), dpi=110, facecolor="white", bbox_inches="tight")
